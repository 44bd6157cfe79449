//! A Chrome trace, in JSON: counters of each device over time, and a mark for
//! each request that failed.
//!
//! Perfetto and `chrome://tracing` stack the parts of a counter, so they are
//! live memory, limbo, and the rest of what is reserved. Cost: at most a number
//! of points.

use serde::Serialize;

use super::super::snapshot::steps::{DeviceSteps, Step, Steps, Thinned};
use super::super::units::bytes;

/// The most points that are written.
pub(super) const MOST: usize = 100_000;

/// The most marks of them.
const MOST_MARKS: usize = 1000;

#[derive(Serialize)]
struct Trace {
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
    #[serde(rename = "traceEvents")]
    events: Vec<Point>,
}

#[derive(Default, Serialize)]
struct Point {
    name: String,
    /// The kind of point: M, C or i.
    ph: &'static str,
    /// In microseconds since the process began.
    ts: u64,
    pid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u64>,
    /// How far a mark reaches: over the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Values>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Values {
    Name { name: String },
    Memory { live: u64, limbo: u64, cached: u64 },
}

/// The trace with at most so many points.
pub(super) fn text(steps: &Steps, most: usize) -> String {
    let marks = steps.devices.iter().map(|device| device.failed.len());
    let marks: usize = marks.sum::<usize>().min(MOST_MARKS).min(most / 2);
    let used = steps
        .devices
        .iter()
        .filter(|device| !device.steps.is_empty());
    // The process has a point of its own.
    let room = most.saturating_sub(marks + 1) / used.count().max(1);
    let mut events = vec![Point {
        name: "process_name".to_owned(),
        ph: "M",
        pid: steps.pid,
        args: Some(Values::Name {
            name: format!("{} ({})", steps.program, steps.pid),
        }),
        ..Point::default()
    }];
    for (number, device) in steps.devices.iter().enumerate() {
        let mut points = Thinned::new(room);
        device.steps.iter().for_each(|step| points.push(*step));
        let points = points.into_steps().into_iter();
        events.extend(points.map(|step| counter(steps, number, &step)));
    }
    let mut failed: Vec<_> = steps
        .devices
        .iter()
        .enumerate()
        .flat_map(marks_of)
        .collect();
    failed.sort_unstable();
    let failed = failed.into_iter().take(marks);
    events.extend(failed.map(|(time_us, size, number)| Point {
        name: format!("out of memory on device {number}: {}", bytes(size)),
        ph: "i",
        ts: time_us.saturating_sub(steps.began_us),
        pid: steps.pid,
        tid: Some(steps.pid),
        s: Some("p"),
        ..Point::default()
    }));
    let trace = Trace { unit: "ms", events };
    // Texts and numbers can always be written.
    serde_json::to_string(&trace).unwrap_or_default() + "\n"
}

fn marks_of((number, device): (usize, &DeviceSteps)) -> Vec<(u64, u64, usize)> {
    let marks = device.failed.iter();
    marks
        .map(|&(time_us, size)| (time_us, size, number))
        .collect()
}

fn counter(steps: &Steps, number: usize, step: &Step) -> Point {
    let cached = step
        .reserved
        .saturating_sub(step.live)
        .saturating_sub(step.limbo);
    Point {
        name: format!("device {number}"),
        ph: "C",
        ts: step.time_us.saturating_sub(steps.began_us),
        pid: steps.pid,
        args: Some(Values::Memory {
            live: step.live,
            limbo: step.limbo,
            cached,
        }),
        ..Point::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_history_is_thinned_and_keeps_its_peak() {
        let step = |at: u64| Step {
            time_us: 1000 + at,
            live: if at == 7777 { 900 } else { at % 10 },
            limbo: 1,
            reserved: 1000,
        };
        let steps = Steps {
            program: "train".to_owned(),
            pid: 42,
            began_us: 1000,
            devices: vec![DeviceSteps {
                steps: (0..100_000).map(step).collect(),
                failed: (0..5000).map(|at| (1000 + at, 1 << 20)).collect(),
            }],
        };
        let trace: serde_json::Value = serde_json::from_str(&text(&steps, 3000)).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert!((2000..=3000).contains(&events.len()), "{}", events.len());
        let counters = events.iter().filter(|event| event["ph"] == "C");
        let peak = counters
            .max_by_key(|event| event["args"]["live"].as_u64())
            .unwrap();
        assert_eq!(
            (&peak["ts"], &peak["args"]["live"]),
            (&7777.into(), &900.into())
        );
        assert_eq!(peak["args"]["cached"], 99);
        let marks = events.iter().filter(|event| event["ph"] == "i");
        assert_eq!(marks.count(), MOST_MARKS);
    }
}
