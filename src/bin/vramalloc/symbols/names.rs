//! Function names as people write them.
//!
//! Parameters and return types are left out. Cost: bounded for any name. It is
//! read up to [`MOST_READ`] bytes and written up to [`MOST_WRITTEN`]; without
//! these bounds, the worst names of large libraries take milliseconds each.

use std::borrow::Cow;
use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, ParseOptions, Symbol};

/// The most of a mangled name that is read.
pub(super) const MOST_READ: usize = 4096;

/// The most that is kept of a name.
const MOST_WRITTEN: usize = 512;

/// How deep a name may nest; each level takes stack.
const DEEPEST: u32 = 128;

/// What stands for the rest of a name that is too long.
const CUT: char = '…';

/// A name as its language writes it, from a symbol table's.
pub(crate) fn demangled(name: &[u8]) -> String {
    if name.len() > MOST_READ {
        return shown(&String::from_utf8_lossy(name));
    }
    let text = String::from_utf8_lossy(name);
    // What a compiler split off or made for one purpose is still the function.
    let whole = text.split_once('@').map_or(&*text, |(name, _version)| name);
    if let Some(name) = rust(whole).or_else(|| cpp(whole)) {
        return name;
    }
    shown(whole)
}

fn shown(text: &str) -> String {
    let mut out = Bounded::default();
    // What does not fit is marked.
    let _ = out.write_str(text);
    out.text
}

fn rust(name: &str) -> Option<String> {
    // C++'s older scheme is the same, but for the hash at the end.
    let is_rust = name.starts_with("_R") || name.starts_with("_ZN") && name.contains("17h");
    if !is_rust {
        return None;
    }
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    let mut out = Bounded::default();
    let _ = write!(out, "{demangled:#}");
    Some(out.text)
}

fn cpp(name: &str) -> Option<String> {
    let name = name.split_once('.').map_or(name, |(name, _clone)| name);
    if !name.starts_with("_Z") {
        return None;
    }
    let read = ParseOptions::default().recursion_limit(DEEPEST);
    let symbol = Symbol::new_with_options(name, &read).ok()?;
    let options = DemangleOptions::new()
        .no_params()
        .no_return_type()
        .recursion_limit(DEEPEST);
    let mut out = Bounded::default();
    let written = symbol.structured_demangle(&mut out, &options);
    // An error that is not the end of the room leaves half a name.
    (written.is_ok() || out.is_cut).then_some(out.text)
}

/// A text that ends where there is no more room.
#[derive(Default)]
struct Bounded {
    text: String,
    is_cut: bool,
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = MOST_WRITTEN.saturating_sub(self.text.len());
        if text.len() <= left {
            self.text.push_str(text);
            return Ok(());
        }
        let end = (0..=left).rev().find(|&at| text.is_char_boundary(at));
        self.text
            .push_str(text.get(..end.unwrap_or(0)).unwrap_or_default());
        self.text.push(CUT);
        self.is_cut = true;
        Err(fmt::Error)
    }
}

/// A name without what hides the rest of it: the arguments of templates and of
/// enclosing functions, unnamed namespaces: `std::vector<>::push_back`.
pub(crate) fn brief(name: &str) -> Cow<'_, str> {
    if !name.contains(['<', '(']) {
        return Cow::Borrowed(name);
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let is_operator = || {
            let head = out.trim_end_matches(['<', '>', '=', '-']);
            head.ends_with("operator")
        };
        let skipped = match c {
            '(' if rest.starts_with(UNNAMED) => UNNAMED.len(),
            '(' if rest.starts_with("()") && out.ends_with("operator") => {
                out.push_str("()");
                "()".len()
            }
            '(' => group(rest),
            // Rust's `<Type as Trait>` is what the function is of.
            '<' if out.is_empty() => {
                out.push('<');
                '<'.len_utf8()
            }
            '<' if !is_operator() => {
                let length = group(rest);
                out.push_str(
                    if rest.get(..length).is_some_and(|group| group.ends_with('>')) {
                        "<>"
                    } else {
                        "<…"
                    },
                );
                length
            }
            ' ' if rest.starts_with(" const::") || rest == " const" => " const".len(),
            c => {
                out.push(c);
                c.len_utf8()
            }
        };
        rest = rest.get(skipped..).unwrap_or_default();
    }
    Cow::Owned(out)
}

/// How names tell of a namespace without a name.
const UNNAMED: &str = "(anonymous namespace)::";

/// The length of the brackets that a text begins with, and of what is in them.
fn group(text: &str) -> usize {
    let (mut depth, mut before) = (0usize, ' ');
    for (at, c) in text.char_indices() {
        match c {
            '<' | '(' => depth += 1,
            // An arrow is no bracket.
            '>' if before == '-' => {}
            '>' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + c.len_utf8();
        }
        before = c;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_each_language() {
        for (mangled, expected) in [
            ("main", "main"),
            ("memcpy@@GLIBC_2.14", "memcpy"),
            (
                "_ZN2at6native10empty_cudaEN3c108ArrayRefIlEE",
                "at::native::empty_cuda",
            ),
            ("_ZN3foo3barEv.constprop.0.cold", "foo::bar"),
            (
                "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
                "core::fmt::Write::write_fmt",
            ),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_Z", "_Z"),
            ("_ZN", "_ZN"),
        ] {
            assert_eq!(demangled(mangled.as_bytes()), expected);
        }
        assert_eq!(demangled(b"\xff"), "\u{fffd}");
    }

    #[test]
    fn no_name_takes_long_or_is_long() {
        // Each level doubles what is written.
        let mut doubling = "_Z1fI1aE".to_owned();
        for _ in 0..60 {
            doubling = doubling.replacen('a', "XadL_Z1gI1aEEE", 1);
        }
        let substitutions = "_Z1fISt4pairIiiES0_".to_owned() + &"St4pairIS0_S0_E".repeat(200);
        let deep = format!("_Z1f{}i", "P".repeat(4000));
        let long = format!("_ZN{}E", "9abcdefghi".repeat(300));
        for name in [doubling, substitutions, deep, long, "x".repeat(1 << 20)] {
            let name = demangled(name.as_bytes());
            assert!(
                name.len() <= MOST_WRITTEN + CUT.len_utf8(),
                "{}",
                name.len()
            );
        }
        let long = demangled(format!("_ZN{}Ev", "9abcdefghi".repeat(60)).as_bytes());
        assert!(
            long.starts_with("abcdefghi::") && long.ends_with(CUT),
            "{long}"
        );
    }

    #[test]
    fn template_arguments_are_left_out() {
        for (name, expected) in [
            ("a::b", "a::b"),
            (
                "std::vector<int, std::allocator<int> >::at",
                "std::vector<>::at",
            ),
            ("f<decltype(a->b), 1>::g<x>", "f<>::g<>"),
            ("a::operator<< <int>", "a::operator<< <>"),
            ("a::operator->", "a::operator->"),
            ("operator<=>", "operator<=>"),
            ("a>b", "a>b"),
            ("f<g<int…", "f<…"),
            (
                "a::(anonymous namespace)::f(int, b<c>)::{lambda(int)#1}::operator()(int) const::{lambda()#2}::operator() const",
                "a::f::{lambda#1}::operator()::{lambda#2}::operator()",
            ),
            ("f(int", "f"),
            ("<a::B<c> as d::E<f>>::g::<h>", "<a::B<> as d::E<>>::g::<>"),
            ("<module>", "<module>"),
        ] {
            assert_eq!(brief(name), expected);
        }
    }
}
