//! `vramalloc options`: the options with the values in force here.

use std::env;
use std::fmt::Display;

use globset::GlobBuilder;
use serde_json::{Value, json};
use vramalloc_core::config::{self, Effective, Host, Loaded, OPTIONS, OptionRow, Role, Torch};

use super::given::{self, Environment};
use super::gloss;
use super::grid::{Column, Grid};
use super::lines::Lines;
use super::output::{USAGE, say, show};

/// What follows the list.
const NOTES: &str = "\
Give them as VRAMALLOC_<OPTION>=value, all in VRAMALLOC_CONF=\"option:value,...\", or with vramalloc \
run --option option=value. FLAGS_... are Paddle's variables, and PyTorch's keys stand in \
PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF. A program that loads the framework leaves them to \
it, unless import is always.";

#[derive(clap::Args)]
#[command(after_help = "\
Without PATTERN it prints a line for each option; with one, also what the options accept and do, \
and the other names they have. The pattern may be a part of a name, and may have * and ? in it.")]
pub(super) struct Arguments {
    /// Only options with this in their name, or in a name that frameworks give
    /// them
    pattern: Option<String>,

    /// Only what differs from the default here
    #[arg(long)]
    changed: bool,

    /// As if this option were given to vramalloc run; one that cannot be read is
    /// an error
    #[arg(long = "option", value_name = "KEY=VALUE")]
    options: Vec<String>,

    /// Say of each option what it accepts and does
    #[arg(long, short)]
    verbose: bool,

    /// As JSON
    #[arg(long, conflicts_with = "verbose")]
    json: bool,
}

/// Prints the list. Returns the exit status. What cannot be read in the
/// environment is reported on standard error.
pub(super) fn options(arguments: &Arguments) -> u8 {
    let (loaded, mut rows) = match asked_for(arguments) {
        Ok(asked_for) => asked_for,
        Err(error) => {
            say(error);
            return USAGE;
        }
    };
    if arguments.changed {
        rows.retain(|row| is_changed(row, &loaded));
    }
    for warning in &loaded.warnings {
        say(warning);
    }
    if arguments.json {
        let all: Vec<Value> = rows.iter().map(|row| as_json(row, &loaded.echo)).collect();
        return show(&format!("{:#}\n", Value::from(all)));
    }
    if rows.is_empty() {
        say("every option has its default value");
        return 0;
    }
    let mut out = Lines::default();
    match arguments {
        Arguments { verbose: true, .. }
        | Arguments {
            pattern: Some(_), ..
        } => in_full(&rows, &loaded.echo, &mut out),
        Arguments { changed: true, .. } => in_short(&rows, &loaded.echo, &CHANGED, &mut out),
        _ => in_short(&rows, &loaded.echo, &ALL, &mut out),
    }
    out.exact("");
    out.wrapped(NOTES, 0);
    show(&out.text)
}

/// Each option's own variable begins with this.
const PREFIX: &str = "VRAMALLOC_";

/// A name that is less like what was given is not meant.
const NEAR: f64 = 0.75;

/// The options that are in force, and those to tell of.
fn asked_for(arguments: &Arguments) -> Result<(Loaded, Vec<&'static OptionRow>), String> {
    let pattern = arguments.pattern.as_deref();
    let rows = pattern.map_or_else(|| Ok(OPTIONS.iter().collect()), fitting)?;
    let given = given::pairs(&arguments.options)?;
    given::check(&given)?;
    let mut environment: Environment = env::vars_os().collect();
    for (key, value) in &given {
        given::set(&mut environment, key, value);
    }
    Ok((config::load(environment, Host::default()), rows))
}

/// The options that a pattern names.
fn fitting(pattern: &str) -> Result<Vec<&'static OptionRow>, String> {
    let name = pattern.trim();
    let begin = name.get(..PREFIX.len());
    let is_own = begin.is_some_and(|begin| begin.eq_ignore_ascii_case(PREFIX));
    let name = if is_own { &name[PREFIX.len()..] } else { name };
    let glob = GlobBuilder::new(&format!("*{name}*"))
        .case_insensitive(true)
        .build()
        .map_err(|error| format!("{pattern}: {}", error.kind()))?
        .compile_matcher();
    let fits = |row: &&OptionRow| names(row).iter().any(|name| glob.is_match(name));
    let rows: Vec<&OptionRow> = OPTIONS.iter().filter(fits).collect();
    if rows.is_empty() {
        let keys = OPTIONS.iter().map(|row| row.key);
        let near = keys.max_by(|a, b| {
            let near = |key| strsim::jaro_winkler(key, &name.to_lowercase());
            near(a).total_cmp(&near(b))
        });
        let near = near.filter(|key| strsim::jaro_winkler(key, &name.to_lowercase()) >= NEAR);
        let meant = near.map_or_else(String::new, |key| format!("; did you mean {key}?"));
        return Err(format!("no option fits \"{pattern}\"{meant}"));
    }
    Ok(rows)
}

/// All names of an option, its own first.
fn names(row: &OptionRow) -> Vec<&'static str> {
    let torch = match row.torch {
        Torch::Keys(keys) => keys.to_vec(),
        Torch::Variable(variable) => vec![variable],
        Torch::No => Vec::new(),
    };
    let others = torch.into_iter().chain(row.paddle);
    let others = others.chain(row.schedulers.iter().copied());
    let mut names = vec![row.key];
    names.extend(others.filter(|&name| name != row.key));
    names
}

/// What is in force of the option that this one sets.
fn in_force<'a>(row: &'static OptionRow, echo: &'a [Effective]) -> Option<&'a Effective> {
    let target = row.target().key;
    echo.iter().find(|effective| effective.key == target)
}

fn is_changed(row: &'static OptionRow, loaded: &Loaded) -> bool {
    let effective = in_force(row, &loaded.echo).filter(|_| row.target().key == row.key);
    effective.is_some_and(|effective| effective.origin != "default")
}

/// Whether it is no other option's name, and has an effect.
fn is_own(row: &OptionRow) -> bool {
    matches!(row.role, Role::Own(_))
}

/// A line for each option, its value and where that comes from, if not from the
/// default.
const ALL: [Column; 2] = [Column::name("OPTION"), Column::text("VALUE")];

const CHANGED: [Column; 4] = [
    Column::name("OPTION"),
    Column::text("VALUE"),
    Column::text("DEFAULT").spare(1),
    Column::text("FROM"),
];

/// What each option accepts and does, and its other names.
fn in_full(rows: &[&'static OptionRow], echo: &[Effective], out: &mut Lines) {
    for (n, row) in rows.iter().enumerate() {
        if n > 0 {
            out.exact("");
        }
        entry(row, echo, out);
    }
    gloss::explain(out);
}

/// A line for each option that is no other's name and has an effect.
fn in_short(
    rows: &[&'static OptionRow],
    echo: &[Effective],
    columns: &'static [Column],
    out: &mut Lines,
) {
    let mut grid = Grid::new(columns);
    let (shown, others): (Vec<&OptionRow>, _) = rows.iter().partition(|row| is_own(row));
    for row in shown {
        let (value, origin) = value(row, echo);
        if columns.len() == CHANGED.len() {
            grid.row([row.key.to_owned(), value, row.default_value(), origin]);
            continue;
        }
        let from = match &*origin {
            "default" => String::new(),
            origin => format!(" ({origin})"),
        };
        grid.row([row.key.to_owned(), value + &from]);
    }
    grid.write_quietly(0, out);
    out.exact("");
    if !others.is_empty() {
        let others = others.len();
        out.wrapped(
            format_args!(
                "{others} more are other names for these, or have no effect here (-v shows them)."
            ),
            0,
        );
    }
    out.wrapped(
        "What one does: vramalloc options PATTERN, such as vramalloc options limit.",
        0,
    );
}

/// The value of an option, and where it comes from.
fn value(row: &'static OptionRow, echo: &[Effective]) -> (String, String) {
    let effective = in_force(row, echo);
    effective.map_or_else(
        || ("not given".to_owned(), String::new()),
        |effective| (effective.value.clone(), effective.origin.to_string()),
    )
}

/// One option: its value, then what it accepts and does.
fn entry(row: &'static OptionRow, echo: &[Effective], out: &mut Lines) {
    let (key, target) = (row.key, row.target().key);
    let (value, origin) = value(row, echo);
    out.heading(match (origin.is_empty(), key == target) {
        (true, _) => format!("{key}: {value}"),
        (false, true) => format!("{key} = {value} ({origin})"),
        // In the form that the other option accepts.
        (false, false) => format!("{key}: {target} = {value} ({origin})"),
    });
    let names = names(row);
    if let [_, others @ ..] = names.as_slice()
        && !others.is_empty()
    {
        below(out, format_args!("other names: {}", others.join(", ")));
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
    let no_effect = match row.role {
        Role::NoEffect(why) => Some(why),
        _ => in_force(row, echo).and_then(|effective| effective.no_effect),
    };
    if let Some(why) = no_effect {
        below(out, format_args!("It has no effect here: {why}."));
    }
}

/// A text broken at spaces, indented.
fn below(out: &mut Lines, text: impl Display) {
    out.wrapped(format_args!("    {text}"), 0);
}

fn as_json(row: &'static OptionRow, echo: &[Effective]) -> Value {
    let effective = in_force(row, echo);
    let (sets, no_effect) = match row.role {
        Role::Own(_) => (None, effective.and_then(|effective| effective.no_effect)),
        Role::Sets(key) => (Some(key), None),
        Role::NoEffect(why) => (None, Some(why)),
    };
    json!({
        "option": row.key,
        "value": effective.map(|effective| &effective.value),
        "origin": effective.map(|effective| effective.origin.to_string()),
        "default": is_own(row).then(|| row.default_value()),
        "kind": row.kind,
        "accepted": row.accepted,
        "other_names": names(row).get(1..),
        "sets": sets,
        "no_effect": no_effect,
        "help": row.help,
    })
}
