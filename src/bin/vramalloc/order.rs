//! `vramalloc dump`, `trim` and `limit`: asks something of a running process.
//!
//! The process does it in its next call that can. Invariant: when the command
//! has ended, however it did, nothing of its order is left to be begun: it has
//! withdrawn it, or its lock of the page has ended with it. No wait is without
//! an end.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use vramalloc_core::config;
use vramalloc_core::control::record::Seen;
use vramalloc_core::control::{MOST_ARGUMENT, OrderKind, Outcome, Reply};

use super::lines::Lines;
use super::output::{USAGE, plain, say, show};
use super::pages::{self, Peer};
use super::units;

/// The exit status if the process did not do it.
const NOT_DONE: u8 = 1;

#[derive(clap::Args)]
pub(super) struct Whom {
    /// The process, by the id that `vramalloc status` shows
    pid: u64,

    /// How long to wait, for other such commands and for a call of the process
    /// that can serve it
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = wait,
          allow_negative_numbers = true)]
    wait: u64,
}

/// What is said below the help of each.
const WHEN: &str = "\
The process does it in its next call that asks CUDA for memory, gives some back \
or asks what is free (one that the cache serves alone does not count). Where \
stats_interval_s is set, as under vramalloc run, and stats is not off, it also \
looks once a second by itself. If there is no such call in time, or this command \
is ended before, it is not done.

The exit status is 0 if it was done, 1 if not, 2 if there is no such process.";

#[derive(clap::Args)]
#[command(after_help = WHEN)]
pub(super) struct DumpArguments {
    #[command(flatten)]
    whom: Whom,
}

#[derive(clap::Args)]
#[command(after_help = WHEN)]
pub(super) struct TrimArguments {
    #[command(flatten)]
    whom: Whom,
}

#[derive(clap::Args)]
#[command(after_help = WHEN)]
pub(super) struct LimitArguments {
    #[command(flatten)]
    whom: Whom,

    /// The most that may be reserved on each device: 16G, 512MiB, a share (0.5,
    /// 50%), or none
    #[arg(allow_negative_numbers = true)]
    size: String,
}

/// How long to wait, in seconds.
fn wait(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok();
    let seconds = seconds.filter(|seconds| (1..=86_400).contains(seconds));
    seconds.ok_or_else(|| "accepted: a whole number of seconds from 1 to 86400".to_owned())
}

/// Has a process write its statistics, and prints the file's name; in quotes if
/// it is no plain text.
pub(super) fn dump(arguments: &DumpArguments) -> u8 {
    ended(order(&arguments.whom, OrderKind::Dump, "", |_, file| file))
}

/// Has a process give idle memory back.
pub(super) fn trim(arguments: &TrimArguments) -> u8 {
    ended(order(&arguments.whom, OrderKind::Trim, "", |_, text| {
        given(&text)
    }))
}

/// Sets the limit of a process.
pub(super) fn limit(arguments: &LimitArguments) -> u8 {
    let size = arguments.size.trim();
    if let Err(error) = config::check("limit", size) {
        return ended(Err((USAGE, error)));
    }
    if size.len() > MOST_ARGUMENT {
        let error = format!("limit: a text of more than {MOST_ARGUMENT} bytes; write it shorter");
        return ended(Err((USAGE, error)));
    }
    ended(order(&arguments.whom, OrderKind::Limit, size, in_force))
}

/// What a process gave back: bytes that went, and that will.
fn given(text: &str) -> String {
    let mut numbers = text.split(' ').map(|number| number.parse().unwrap_or(0));
    let (given, owed) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let given = format!("{} went back to the driver", units::bytes(given));
    if owed == 0 {
        return given;
    }
    format!(
        "{given}; {} more will when it next frees",
        units::bytes(owed)
    )
}

/// The limit in force, and where more is reserved.
fn in_force(peer: &Peer, limit: String) -> String {
    let mut text = match &*limit {
        "none" => "no limit is in force".to_owned(),
        limit => format!("the limit is {limit} per device"),
    };
    let devices = peer.figures().map(|figures| figures.devices);
    let devices = devices.unwrap_or_default();
    if is_share(&limit) {
        let on = devices.iter().filter_map(|device| {
            let bytes = units::bytes(device.limit?.get());
            Some(format!("{bytes} on device {}", device.ordinal))
        });
        let on: Vec<String> = on.collect();
        if !on.is_empty() {
            text += &format!(": {}", on.join(", "));
        }
    }
    let mut lines = Lines::default();
    lines.wrapped(text, 2);
    for device in devices {
        let all = device.reserved.saturating_add(device.past);
        if device.limit.is_some_and(|limit| all > limit) {
            let reserved = units::bytes(device.reserved.get());
            let ordinal = device.ordinal;
            let past = match device.past.get() {
                0 => String::new(),
                past => format!(", and {} are past the pool", units::bytes(past)),
            };
            lines.wrapped(
                format_args!(
                    "device {ordinal}: {reserved} are reserved{past}; no more is taken until that \
                     is below the limit"
                ),
                2,
            );
        }
    }
    lines.text
}

/// Whether a limit is a share of each device: it has no unit.
fn is_share(limit: &str) -> bool {
    limit.ends_with(|last: char| last.is_ascii_digit() || last == '%')
}

/// Shows how it ended, without what would do something to a terminal: parts of
/// it are another process's. Returns the exit status.
fn ended(result: Result<String, (u8, String)>) -> u8 {
    match result {
        Ok(text) => show(
            &text
                .lines()
                .map(|line| plain(line) + "\n")
                .collect::<String>(),
        ),
        Err((status, error)) => {
            say(error);
            status
        }
    }
}

/// Leaves an order, waits for what comes of it, and puts that in words.
///
/// # Errors
/// The exit status, and one line that says what went wrong.
fn order(
    whom: &Whom,
    kind: OrderKind,
    argument: &str,
    told: impl FnOnce(&Peer, String) -> String,
) -> Result<String, (u8, String)> {
    let peer = pages::find(whom.pid).map_err(|error| (USAGE, error))?;
    let most = Duration::from_secs(whom.wait);
    let reply = ask(&peer, kind, argument, most).map_err(|error| (NOT_DONE, error))?;
    match reply.outcome {
        Outcome::Done => Ok(told(&peer, reply.text)),
        Outcome::Withdrawn => {
            let why = "the order was replaced before it was begun";
            Err((NOT_DONE, format!("process {}: {why}", whom.pid)))
        }
        Outcome::Refused | Outcome::Begun => {
            Err((NOT_DONE, format!("process {}: {}", whom.pid, reply.text)))
        }
    }
}

/// The last word on an order.
fn ask(peer: &Peer, kind: OrderKind, argument: &str, most: Duration) -> Result<Reply, String> {
    // What was begun at the last moment is waited for a little longer.
    const TO_BE_DONE: Duration = Duration::from_secs(1);
    let deadline = Instant::now() + most;
    let pid = peer.shown_id();
    let ended = || format!("process {pid} has ended");
    let has_ended = || peer.has_ended();
    let seconds = most.as_secs();
    if by(deadline, || peer.lock().then_some(()), has_ended).is_none() {
        if has_ended() {
            return Err(ended());
        }
        let who = peer.sender().map(|sender| format!(" (process {sender})"));
        return Err(format!(
            "another command{} has been waiting for process {pid} for {seconds} s",
            who.unwrap_or_default()
        ));
    }
    pages::step();
    let until = boot_ms().saturating_add(u64::try_from(most.as_millis()).unwrap_or(u64::MAX));
    let number = peer.page.post(kind, argument, until).map_err(|_| ended())?;
    pages::step();
    let over = || {
        let reply = peer.page.reply_to(number).ok()?.whole()?;
        (reply.outcome != Outcome::Begun).then_some(reply)
    };
    if let Some(reply) = by(deadline, over, has_ended) {
        return Ok(reply);
    }
    pages::step();
    let heard = peer.page.withdraw(number).map_err(|_| ended())?;
    pages::step();
    if has_ended() {
        return Err(ended());
    }
    if heard != Seen::Nothing {
        return match by(Instant::now() + TO_BE_DONE, over, has_ended) {
            Some(reply) if reply.outcome != Outcome::Withdrawn => Ok(reply),
            Some(_) => Err(unserved(pid, seconds)),
            None if has_ended() => Err(ended()),
            None => Err(format!(
                "process {pid} has begun it and is not done after {seconds} s"
            )),
        };
    }
    Err(unserved(pid, seconds))
}

/// Milliseconds since the machine began: a clock that nobody sets.
fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let whole = |n: i64| u64::try_from(n).unwrap_or(0);
    whole(now.tv_sec)
        .saturating_mul(1000)
        .saturating_add(whole(now.tv_nsec) / 1_000_000)
}

fn unserved(pid: u64, seconds: u64) -> String {
    format!(
        "process {pid} has made no call that could serve it for {seconds} s; it was withdrawn \
         (--wait waits longer; under stats_interval_s it would look once a second by itself)"
    )
}

/// Looks again and again until there is an answer, no hope, or no time left.
fn by<T>(
    deadline: Instant,
    mut look: impl FnMut() -> Option<T>,
    is_hopeless: impl Fn() -> bool,
) -> Option<T> {
    const LEAST: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_millis(50);
    let mut pause = LEAST;
    loop {
        // Asked first: what was said last is seen all the same.
        let is_last = is_hopeless() || Instant::now() >= deadline;
        let found = look();
        if found.is_some() || is_last {
            return found;
        }
        sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
        pause = (2 * pause).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_back_is_told_in_words() {
        assert_eq!(given("1048576 0"), "1.0 MiB went back to the driver");
        assert!(given("0 1024").ends_with("; 1.0 KiB more will when it next frees"));
        assert_eq!(given(""), "0 B went back to the driver");
    }

    #[test]
    fn a_limit_without_a_unit_is_a_share() {
        for share in ["0.5", "50%", "1"] {
            assert!(is_share(share), "{share}");
        }
        for other in ["none", "8GiB", "17B"] {
            assert!(!is_share(other), "{other}");
        }
    }
}
