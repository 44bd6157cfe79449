//! `vramalloc options`: all options with the values in force here.

use std::env;
use std::fmt::Write;

use vramalloc::config::{self, Effective, Host, OPTIONS, OptionRow, Role};

use super::{plain, say, show};

/// Width that the texts are broken to.
const WIDTH: usize = 80;

/// What stands before a line of text below an option.
const INDENT: &str = "    ";

/// Prints the list and answers with the exit status. What the environment
/// holds that cannot be read is said on standard error.
pub(super) fn options() -> u8 {
    let loaded = config::load(env::vars_os(), Host::default());
    let mut text = String::new();
    line(&mut text, ["OPTION", "VALUE", "FROM"]);
    for row in OPTIONS {
        entry(&mut text, row, &loaded.echo);
    }
    text.push_str(
        "\nGive them as VRAMALLOC_<OPTION>=value, all in VRAMALLOC_CONF=\"option:value,...\", or\n\
         with vramalloc run --option option=value. The names FLAGS_... are Paddle's variables; a\n\
         program that loads Paddle leaves them to it, unless import is always.\n",
    );
    for warning in &loaded.warnings {
        say(warning);
    }
    show(&text)
}

/// One option: its value, then what it takes and does.
fn entry(text: &mut String, row: &'static OptionRow, echo: &[Effective]) {
    text.push('\n');
    let default = match row.role {
        Role::Own(_) => {
            let effective = echo.iter().find(|effective| effective.key == row.key);
            let (value, origin) =
                effective.map_or(("", ""), |effective| (&effective.value, &effective.origin));
            line(text, [row.key, &plain(value), origin]);
            format!("default {}", row.default_value())
        }
        Role::Sets(key) => {
            line(text, [row.key, "", ""]);
            format!("another way to set {key}")
        }
    };
    if let Some(flag) = row.paddle {
        wrapped(text, flag);
    }
    wrapped(
        text,
        &format!("{}; {default}; accepted: {}", row.kind, row.accepted),
    );
    wrapped(text, row.help);
}

/// Three columns.
fn line(text: &mut String, [option, value, origin]: [&str; 3]) {
    let start = text.len();
    // Writing to a string cannot fail.
    let _ = write!(text, "{option:<34}  {value:<22}  {origin}");
    let end = text.get(start..).map_or(0, |line| line.trim_end().len());
    text.truncate(start + end);
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
