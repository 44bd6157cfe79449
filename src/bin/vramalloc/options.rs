//! `vramalloc options`: all options with the values in force here.

use std::env;
use std::fmt::Write;

use vramalloc_core::config::{self, Effective, Host, OPTIONS, OptionRow, Role, Torch};

use super::output::{plain, say, show};

/// The width of the text.
const WIDTH: usize = 80;

/// The indentation of text below an option.
const INDENT: &str = "    ";

/// What follows the list.
const NOTES: &str = "
Give them as VRAMALLOC_<OPTION>=value, all in VRAMALLOC_CONF=\"option:value,...\",
or with vramalloc run --option option=value. FLAGS_... are Paddle's variables,
and PyTorch's keys stand in PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF. A
program that loads the framework leaves them to it, unless import is always.
";

/// Prints the list. Returns the exit status. What cannot be read in the
/// environment is reported on standard error.
pub(super) fn options() -> u8 {
    let loaded = config::load(env::vars_os(), Host::default());
    let mut text = String::new();
    line(&mut text, ["OPTION", "VALUE", "FROM"]);
    for row in OPTIONS {
        entry(&mut text, row, &loaded.echo);
    }
    text.push_str(NOTES);
    for warning in &loaded.warnings {
        say(warning);
    }
    show(&text)
}

/// One option: its value, then what it accepts and does.
fn entry(text: &mut String, row: &'static OptionRow, echo: &[Effective]) {
    text.push('\n');
    let target = row.target().key;
    let (value, origin) = match echo.iter().find(|effective| effective.key == target) {
        Some(effective) if target == row.key => (effective.value.clone(), &*effective.origin),
        // The value that it would have set, in the form that this option
        // accepts.
        Some(effective) => (
            format!("{target} = {}", effective.value),
            &*effective.origin,
        ),
        None => ("not given".to_owned(), ""),
    };
    line(text, [row.key, &plain(&value), origin]);
    match row.torch {
        Torch::Keys(keys) => wrapped(text, &format!("PyTorch: {}", keys.join(", "))),
        Torch::Variable(variable) => wrapped(text, variable),
        Torch::No => {}
    }
    if let Some(flag) = row.paddle {
        wrapped(text, flag);
    }
    let role = match row.role {
        Role::Own(_) => format!("default {}", row.default_value()),
        Role::Sets(key) => format!("another way to set {key}"),
        Role::NoEffect(_) => "without effect".to_owned(),
    };
    wrapped(
        text,
        &format!("{}; {role}; accepted: {}", row.kind, row.accepted),
    );
    wrapped(text, row.help);
    if let Role::NoEffect(why) = row.role {
        wrapped(text, &format!("It has no effect here: {why}."));
    }
}

/// Three columns; if they are too wide, the last stands on a line of its own.
fn line(text: &mut String, [option, value, origin]: [&str; 3]) {
    let columns = format!("{option:<34}  {value:<22}  {origin}");
    if columns.chars().count() <= WIDTH {
        text.push_str(columns.trim_end());
    } else {
        let columns = format!("{option:<34}  {value}");
        text.push_str(columns.trim_end());
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{:<34}  from {origin}", "");
    }
    text.push('\n');
}

/// A text broken at spaces, indented.
fn wrapped(text: &mut String, words: &str) {
    let mut column = 0;
    for word in words.split_whitespace() {
        let width = word.chars().count();
        if column == 0 || column + 1 + width > WIDTH {
            if column > 0 {
                text.push('\n');
            }
            text.push_str(INDENT);
            column = INDENT.len();
        } else {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += width;
    }
    text.push('\n');
}
