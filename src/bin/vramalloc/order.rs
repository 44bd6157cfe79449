//! `vramalloc dump`, `trim` and `limit`: asks something of a running process.
//!
//! The process does it in its next call that can. Invariant: when the command
//! has returned, nothing of its order is left to be begun; no wait is without
//! an end.

use std::thread::sleep;
use std::time::{Duration, Instant};

use vramalloc_core::config;
use vramalloc_core::control::record::Seen;
use vramalloc_core::control::{OrderKind, Outcome, Reply};

use super::output::{USAGE, say, show};
use super::pages::{self, Peer};
use super::status::now_ms;
use super::units;

/// The exit status if the process did not do it.
const NOT_DONE: u8 = 1;

#[derive(clap::Args)]
pub(super) struct Whom {
    /// The process, by the id that `vramalloc status` shows
    pid: u64,

    /// How long to wait for a call of the process that can serve it
    #[arg(long, value_name = "SECONDS", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    wait: u64,
}

/// What is said below the help of each.
const WHEN: &str = "\
The process does it in its next call that asks CUDA for memory, gives some back
or asks what is free (one that the cache serves alone does not count), or within
a second where stats_interval_s is set. If there is no such call in time, it is
not done.

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
    size: String,
}

/// Has a process write its statistics, and prints the file's name.
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
    for device in devices.unwrap_or_default() {
        let all = device.reserved.saturating_add(device.past);
        if device.limit.is_some_and(|limit| all > limit) {
            let reserved = units::bytes(device.reserved.get());
            let ordinal = device.ordinal;
            let past = match device.past.get() {
                0 => String::new(),
                past => format!(", and {} are past the pool", units::bytes(past)),
            };
            text += &format!(
                "\ndevice {ordinal}: {reserved} are reserved{past}; no more is taken until that \
                 is below the limit"
            );
        }
    }
    text
}

/// Shows how it ended. Returns the exit status.
fn ended(result: Result<String, (u8, String)>) -> u8 {
    match result {
        Ok(text) => show(&format!("{text}\n")),
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
        _ => Err((NOT_DONE, format!("process {}: {}", whom.pid, reply.text))),
    }
}

/// The reply to an order, done or refused.
fn ask(peer: &Peer, kind: OrderKind, argument: &str, most: Duration) -> Result<Reply, String> {
    let pid = peer.owner.pid;
    let ended = || format!("process {pid} has ended");
    let seconds = most.as_secs();
    if within(most, || peer.lock().then_some(()), || false).is_none() {
        return Err(format!(
            "another command has been waiting for process {pid} for {seconds} s"
        ));
    }
    pages::step();
    let until = now_ms().saturating_add(u64::try_from(most.as_millis()).unwrap_or(u64::MAX));
    let number = peer.page.post(kind, argument, until).map_err(|_| ended())?;
    pages::step();
    let over = || {
        let reply = peer.page.reply_to(number).ok()?.whole()?;
        (reply.outcome != Outcome::Begun).then_some(reply)
    };
    let has_ended = || peer.has_ended();
    if let Some(reply) = within(most, over, has_ended) {
        return Ok(reply);
    }
    pages::step();
    let heard = peer.page.withdraw(number).map_err(|_| ended())?;
    pages::step();
    if has_ended() {
        return Err(ended());
    }
    if heard != Seen::Nothing {
        // What was begun is waited for as long again.
        return match within(most, over, has_ended) {
            Some(reply) if reply.outcome != Outcome::Withdrawn => Ok(reply),
            Some(_) => Err(unserved(pid, seconds)),
            None => Err(format!(
                "process {pid} has begun it and is not done after {seconds} s"
            )),
        };
    }
    Err(unserved(pid, seconds))
}

fn unserved(pid: u64, seconds: u64) -> String {
    format!(
        "process {pid} has made no call that could serve it for {seconds} s; it was withdrawn \
         (--wait waits longer)"
    )
}

/// Looks again and again, for so long, until there is an answer or no hope.
fn within<T>(
    most: Duration,
    mut look: impl FnMut() -> Option<T>,
    is_hopeless: impl Fn() -> bool,
) -> Option<T> {
    const LEAST: Duration = Duration::from_millis(1);
    const LONGEST: Duration = Duration::from_millis(50);
    let start = Instant::now();
    let mut pause = LEAST;
    loop {
        // Asked first: what was said last is seen all the same.
        let is_last = is_hopeless() || start.elapsed() >= most;
        let found = look();
        if found.is_some() || is_last {
            return found;
        }
        sleep(pause);
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
}
