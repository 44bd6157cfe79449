//! A place of a call stack, in words.

use std::borrow::Cow;
use std::rc::Rc;

use super::super::symbols::{Function, SourceLine, brief};
use super::fold;

/// What a place is to somebody who looks for who asked for memory.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum PlaceKind {
    Python,
    Native,
    /// Of an allocator, or a runtime that it uses.
    Allocator,
    /// Between those who ask and those who do: dispatchers, loops, starts of
    /// threads.
    Plumbing,
    /// Ours.
    Own,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) kind: PlaceKind,
    /// The source, or the file of the code if that is not known.
    pub(crate) file: Rc<str>,
    /// 0 if it is not known.
    pub(crate) line: u32,
    /// `None` if it is not known.
    pub(crate) function: Option<Rc<str>>,
    is_near: bool,
    /// Where in the file of the code.
    offset: u64,
    /// Whether its name is as it is written, without arguments.
    is_plain: bool,
}

impl Place {
    pub(super) fn python(file: &str, line: u32, function: &str) -> Place {
        let is_plumbing = fold::is_python_plumbing(file, function);
        Place {
            kind: if is_plumbing {
                PlaceKind::Plumbing
            } else {
                PlaceKind::Python
            },
            file: file.into(),
            line,
            function: Some(function.into()),
            is_near: false,
            offset: 0,
            is_plain: true,
        }
    }

    /// Code of no file.
    pub(super) fn unknown(address: u64) -> Place {
        Place {
            kind: PlaceKind::Native,
            file: "".into(),
            line: 0,
            function: None,
            is_near: false,
            offset: address,
            is_plain: false,
        }
    }

    /// The places at an offset of a file, by the name that the statistics have,
    /// or the functions that were found.
    pub(super) fn native(
        file: &Rc<str>,
        offset: u64,
        name: Option<&str>,
        functions: &[Function],
    ) -> Vec<Place> {
        let object = base(file);
        let place = |function: Option<Rc<str>>, is_near, at: Option<&SourceLine>| Place {
            kind: fold::kind(object, function.as_deref().unwrap_or_default()),
            file: Rc::clone(at.map_or(file, |at| &at.file)),
            line: at.map_or(0, |at| at.line),
            function,
            is_near,
            offset,
            is_plain: false,
        };
        if functions.is_empty() {
            return vec![place(name.map(Rc::from), false, None)];
        }
        let places = functions.iter().map(|function| {
            let name = Some(&function.name).filter(|name| !name.is_empty());
            place(name.cloned(), function.is_near, function.at.as_ref())
        });
        places.collect()
    }

    /// The place as it is shown: `train.py:41 forward`,
    /// `at::native::empty_cuda`; in a file without names `libc10.so+0x1234`,
    /// as `addr2line -e` takes it.
    pub(crate) fn text(&self) -> String {
        self.with_name(|name| name)
    }

    /// The same for a line of text: of a long name the end.
    pub(super) fn short_text(&self) -> String {
        self.with_name(tail)
    }

    fn brief<'a>(&self, function: &'a str) -> Cow<'a, str> {
        match self.is_plain {
            true => Cow::Borrowed(function),
            false => brief(function),
        }
    }

    /// Whether it is of a package of Python's that somebody else wrote.
    pub(super) fn is_installed(&self) -> bool {
        const PLACES: [&str; 3] = ["/site-packages/", "/dist-packages/", "/lib/python3"];
        PLACES.iter().any(|place| self.file.contains(place))
    }

    fn with_name(&self, shown: impl Fn(&str) -> &str) -> String {
        let Some(function) = &self.function else {
            return match &*self.file {
                "" => format!("{:#x}", self.offset),
                file => format!("{}+{:#x}", base(file), self.offset),
            };
        };
        let near = if self.is_near { "~" } else { "" };
        let whole = self.brief(function);
        let name = shown(&whole);
        let cut = if name.len() < whole.len() {
            "…::"
        } else {
            ""
        };
        match self.line {
            0 => format!("{near}{cut}{name}"),
            line => format!("{}:{line} {near}{cut}{name}", short(&self.file)),
        }
    }

    /// The function's whole name, or where it is in its file.
    pub(crate) fn name(&self) -> String {
        let at = || format!("{:#x}", self.offset);
        (self.function.as_deref()).map_or_else(at, str::to_owned)
    }

    /// What stays the same from one build of a program to the next: without
    /// addresses and lines.
    pub(crate) fn lasting(&self) -> String {
        match (&self.function, self.line) {
            (Some(function), 0) => self.brief(function).into_owned(),
            (Some(function), _) => format!("{} {}", short(&self.file), self.brief(function)),
            (None, _) => base(&self.file).to_owned(),
        }
    }

    /// Whether it is of a pool that `PyTorch` keeps itself.
    pub(super) fn is_of_a_pool(&self) -> bool {
        let function = self.function.as_deref().unwrap_or_default();
        fold::POOLS.iter().any(|pool| function.contains(pool))
    }
}

/// The longest name that is shown whole in a line, in bytes.
const LONGEST: usize = 44;

/// The last parts of a name, as many as fit, and one at least.
fn tail(name: &str) -> &str {
    let mut rest = name;
    while rest.len() > LONGEST {
        match rest.split_once("::") {
            Some((_, behind)) if !behind.is_empty() => rest = behind,
            _ => break,
        }
    }
    rest
}

/// The last part of a path.
fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// A source file; one that says nothing alone has its folder in front.
fn short(path: &str) -> &str {
    let name = base(path);
    if !matches!(
        name,
        "__init__.py" | "__main__.py" | "mod.rs" | "lib.rs" | "main.rs"
    ) {
        return name;
    }
    let folder = path.strip_suffix(name).unwrap_or_default();
    let folder = base(folder.strip_suffix('/').unwrap_or_default());
    let length = match folder.len() {
        0 => name.len(),
        length => length + 1 + name.len(),
    };
    path.get(path.len() - length..).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native(function: Option<Function>) -> Place {
        let functions: Vec<Function> = function.into_iter().collect();
        let mut places = Place::native(&"/lib/libx.so".into(), 0x1234, None, &functions);
        assert_eq!(places.len(), 1);
        places.remove(0)
    }

    #[test]
    fn a_place_is_shown_by_what_is_known() {
        assert_eq!(
            Place::python("/a/train.py", 41, "forward").text(),
            "train.py:41 forward"
        );
        assert_eq!(native(None).text(), "libx.so+0x1234");
        assert_eq!(native(None).lasting(), "libx.so");
        assert_eq!(Place::unknown(16).text(), "0x10");
        let mut function = Function {
            name: "a::f<b>".into(),
            is_near: true,
            at: None,
        };
        assert_eq!(native(Some(function.clone())).text(), "~a::f<>");
        function.is_near = false;
        function.at = Some(SourceLine {
            file: "/src/x/mod.rs".into(),
            line: 7,
        });
        let place = native(Some(function));
        assert_eq!(
            (place.text(), place.lasting()),
            ("x/mod.rs:7 a::f<>".into(), "x/mod.rs a::f<>".into())
        );
        let named = Place::native(&"".into(), 1, Some("f"), &[]);
        assert_eq!(named[0].text(), "f");
    }

    #[test]
    fn of_a_long_name_the_end_is_shown() {
        let name = format!("a::{}::g::h", "f".repeat(LONGEST));
        let named = |name: &str| Place::native(&"".into(), 1, Some(name), &[]).remove(0);
        assert_eq!(named(&name).short_text(), "…::g::h");
        assert_eq!(named(&name).text(), name);
        assert_eq!(named("a::b").short_text(), "a::b");
        let long = "f".repeat(100);
        assert_eq!(named(&long).short_text(), long);
        assert_eq!(
            named(&format!("{long}::")).short_text(),
            format!("{long}::")
        );
    }

    #[test]
    fn a_file_that_says_nothing_alone_has_its_folder() {
        for (path, shown) in [
            ("/a/nn/__init__.py", "nn/__init__.py"),
            ("__init__.py", "__init__.py"),
            ("/__init__.py", "__init__.py"),
            ("/a/b.py", "b.py"),
            ("", ""),
        ] {
            assert_eq!(short(path), shown);
        }
    }
}
