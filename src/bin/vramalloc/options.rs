//! `vramalloc options`: all options with the values in force here.

use std::env;
use std::fmt::Display;

use vramalloc_core::config::{self, Effective, Host, OPTIONS, OptionRow, Role, Torch};

use super::lines::{Lines, WIDTH};
use super::output::{say, show};

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
    let mut out = Lines::default();
    line(&mut out, ["OPTION", "VALUE", "FROM"]);
    for row in OPTIONS {
        entry(&mut out, row, &loaded.echo);
    }
    for warning in &loaded.warnings {
        say(warning);
    }
    show(&(out.text + NOTES))
}

/// One option: its value, then what it accepts and does.
fn entry(out: &mut Lines, row: &'static OptionRow, echo: &[Effective]) {
    out.exact("");
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
    line(out, [row.key, &value, origin]);
    match row.torch {
        Torch::Keys(keys) => below(out, format_args!("PyTorch: {}", keys.join(", "))),
        Torch::Variable(variable) => below(out, variable),
        Torch::No => {}
    }
    if let Some(flag) = row.paddle {
        below(out, flag);
    }
    for variable in row.schedulers {
        below(out, variable);
    }
    let role = match row.role {
        Role::Own(_) => format!("default {}", row.default_value()),
        Role::Sets(key) => format!("another way to set {key}"),
        Role::NoEffect(_) => "without effect".to_owned(),
    };
    below(
        out,
        format_args!("{}; {role}; accepted: {}", row.kind, row.accepted),
    );
    below(out, row.help);
    if let Role::NoEffect(why) = row.role {
        below(out, format_args!("It has no effect here: {why}."));
    }
}

/// Three columns; if they are too wide, the last stands on a line of its own.
fn line(out: &mut Lines, [option, value, origin]: [&str; 3]) {
    let columns = format!("{option:<34}  {value:<22}  {origin}");
    if columns.chars().count() <= WIDTH {
        out.exact(columns.trim_end());
    } else {
        out.exact(format!("{option:<34}  {value}").trim_end());
        out.exact(format_args!("{:<34}  from {origin}", ""));
    }
}

/// A text broken at spaces, indented.
fn below(out: &mut Lines, text: impl Display) {
    out.wrapped(format_args!("    {text}"), 0);
}
