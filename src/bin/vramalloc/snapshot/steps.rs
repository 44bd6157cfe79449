//! How much memory each device held after each of its events.
//!
//! The events lead up to the state at the end, so the state before them follows
//! by undoing: what they changed is taken from what there is at the end.

use super::read::{Action, Block, Event, State, Statistics};
use super::replay::{Device, Replayed};

/// The history of a process.
pub(crate) struct Steps {
    pub(crate) program: String,
    pub(crate) pid: u64,
    /// Microseconds since 1970, as all times.
    pub(crate) began_us: u64,
    /// By number.
    pub(crate) devices: Vec<DeviceSteps>,
}

/// The history of a device.
#[derive(Default)]
pub(crate) struct DeviceSteps {
    pub(crate) steps: Vec<Step>,
    /// When a request failed, and its size.
    pub(crate) failed: Vec<(u64, u64)>,
}

/// What a device held from a moment on, by what the program asked for.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Step {
    pub(crate) time_us: u64,
    pub(crate) live: u64,
    pub(crate) limbo: u64,
    pub(crate) reserved: u64,
}

/// Steps, at most so many. Of the steps that one stands for it is that with the most
/// live memory, so that no peak is lost.
pub(crate) struct Thinned {
    steps: Vec<Step>,
    most: usize,
    /// How many steps one stands for, and how many the last stands for so far.
    group: usize,
    filled: usize,
}

impl Thinned {
    pub(crate) fn new(most: usize) -> Thinned {
        Thinned {
            steps: Vec::new(),
            most: most.max(2),
            group: 1,
            filled: 0,
        }
    }

    pub(crate) fn push(&mut self, step: Step) {
        match self.steps.last_mut() {
            Some(last) if self.filled < self.group => {
                self.filled += 1;
                if step.live >= last.live {
                    *last = step;
                }
            }
            _ => {
                if self.steps.len() >= self.most {
                    let most_live =
                        |group: &[Step]| group.iter().max_by_key(|step| step.live).copied();
                    self.steps = self.steps.chunks(2).filter_map(most_live).collect();
                    self.group *= 2;
                }
                self.steps.push(step);
                self.filled = 1;
            }
        }
    }

    pub(crate) fn into_steps(self) -> Vec<Step> {
        self.steps
    }
}

impl Steps {
    /// # Errors
    /// What is wrong with the file, or that it has no events.
    pub(crate) fn of(bytes: &[u8]) -> Result<Steps, String> {
        let statistics = Statistics::parse(bytes)?;
        let replayed = Replayed::new(&statistics.snapshot);
        if replayed
            .devices
            .iter()
            .all(|device| device.events.is_empty())
        {
            return Err(
                "it holds no events; run the program with trace:N, the number of the \
                        newest events that are kept"
                    .to_owned(),
            );
        }
        Ok(Steps {
            program: statistics.program,
            pid: statistics.pid,
            began_us: statistics.started_unix_ms.saturating_mul(1000),
            devices: replayed.devices.iter().map(DeviceSteps::of).collect(),
        })
    }
}

impl DeviceSteps {
    fn of(device: &Device) -> DeviceSteps {
        let mut steps = DeviceSteps::default();
        let mut held = at_end(device);
        for (_, event) in device.events.iter().rev() {
            held.change(event, false);
        }
        for &(time_us, event) in &device.events {
            if event.action == Action::Oom {
                steps.failed.push((time_us, event.size.get()));
                continue;
            }
            held.change(&event, true);
            held.time_us = time_us;
            steps.steps.push(held);
        }
        steps
    }
}

fn at_end(device: &Device) -> Step {
    let blocks = device.segments.iter().flat_map(|segment| &segment.blocks);
    let sum = |state: State| {
        let of_state = blocks.clone().filter(|block: &&Block| block.state == state);
        of_state.fold(0u64, |sum, block| sum.saturating_add(block.requested.get()))
    };
    let segments = device.segments.iter();
    Step {
        time_us: 0,
        live: sum(State::ActiveAllocated),
        limbo: sum(State::ActivePendingFree),
        reserved: segments.fold(0, |sum, segment| sum.saturating_add(segment.size.get())),
    }
}

impl Step {
    /// Does what an event did, or undoes it.
    fn change(&mut self, event: &Event, does: bool) {
        let size = event.size.get();
        let change = |value: &mut u64, grows: bool| {
            *value = match grows == does {
                true => value.saturating_add(size),
                false => value.saturating_sub(size),
            };
        };
        match event.action {
            Action::Alloc => change(&mut self.live, true),
            Action::FreeRequested => {
                change(&mut self.live, false);
                change(&mut self.limbo, true);
            }
            Action::FreeCompleted => change(&mut self.limbo, false),
            Action::SegmentAlloc | Action::SegmentMap => change(&mut self.reserved, true),
            Action::SegmentFree | Action::SegmentUnmap => change(&mut self.reserved, false),
            Action::Oom => {}
        }
    }
}
