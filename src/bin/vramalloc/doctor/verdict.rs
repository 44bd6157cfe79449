//! The last finding: whether the program is served, as far as that was seen.

use super::super::units::count;
use super::PAST;
use super::findings::Findings;
use super::program::{Program, Ways};
use super::trial::Served;

/// Tells it; `served` is what the trial saw, if there was one.
pub(super) fn verdict(
    program: &Program,
    ways: &Ways,
    served: Option<&Served>,
    findings: &mut Findings,
) {
    let started = program.path.file_name().unwrap_or(program.path.as_os_str());
    let started = started.to_string_lossy();
    // A launcher is not what uses CUDA; `python3.11` is what was called `python3`.
    let sole = served.filter(|served| served.programs.len() == 1);
    let user = sole.and_then(|served| served.programs.first());
    let other = user.filter(|user| !user.starts_with(&*started));
    let name = other.map_or(&*started, String::as_str);
    match served {
        _ if findings.problems() > 0 => {}
        Some(Served {
            pool: 0,
            past: 0,
            unproved: Some(why),
            ..
        }) => findings.note(
            "verdict",
            format_args!("no allocation of {name} was seen in this run{why}"),
        ),
        Some(Served {
            pool: 0, past: 0, ..
        }) => findings.told(
            "verdict",
            format_args!("nothing to do: no CUDA was seen in this run of {name}"),
        ),
        Some(&Served { pool: 0, past, .. }) => findings.told(
            "verdict",
            format_args!(
                "nothing stands in the way: {} of {name} went past the pool, and none to it; \
                 {PAST}",
                count(past, "allocation")
            ),
        ),
        Some(&Served { pool, past, .. }) => {
            let more = match past {
                0 => String::new(),
                _ => format!("; {past} more went past the pool, counted and capped"),
            };
            findings.told(
                "verdict",
                format_args!(
                    "nothing stands in the way: {} of {name} {} served{more}",
                    count(pool, "allocation"),
                    if pool == 1 { "was" } else { "were" }
                ),
            );
        }
        None if ways.any() => findings.told(
            "verdict",
            format_args!("nothing stands in the way of {name}"),
        ),
        None if program.is_told() => findings.note(
            "verdict",
            format_args!("only a trial run tells whether {name} uses CUDA"),
        ),
        None => findings.told(
            "verdict",
            format_args!("nothing to do: {name} uses no CUDA"),
        ),
    }
}
