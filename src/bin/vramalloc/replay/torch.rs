//! A memory snapshot of PyTorch's as a tape: the program's own requests and frees, as
//! far as the snapshot's trace goes back.
//!
//! What was live when the trace began comes first: blocks that are freed in the trace or
//! live at its end, and whose allocation is not in it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::Read;

use super::pickle::{self, TorchSnapshot, TraceAction};
use super::tape::{Item, Tape, TapeArena, What};

/// Reads a snapshot.
///
/// # Errors
/// What is wrong with it, or that it has no trace.
pub(super) fn read(file: impl Read) -> Result<Tape, String> {
    let snapshot = pickle::read(file)?;
    if snapshot.traces.iter().all(Vec::is_empty) {
        return Err("the snapshot has no trace: PyTorch keeps one after \
             torch.cuda.memory._record_memory_history()"
            .to_owned());
    }
    let mut making = Making::default();
    for device in 0..snapshot.traces.len() {
        making.device(&snapshot, device);
    }
    making.items.sort_by_key(|item| item.time_us);
    for (event, item) in (1..).zip(&mut making.items) {
        item.event = event;
    }
    Ok(Tape {
        options: None,
        arenas: making.arenas,
        events: u32::try_from(making.items.len()).unwrap_or(u32::MAX),
        items: making.items,
        blocks: making.blocks,
        past: BTreeSet::new(),
        lacks: None,
        is_ended: true,
        is_cut: false,
    })
}

#[derive(Default)]
struct Making {
    arenas: Vec<TapeArena>,
    items: Vec<Item>,
    blocks: u32,
}

impl Making {
    fn device(&mut self, snapshot: &TorchSnapshot, device: usize) {
        let Some(trace) = snapshot
            .traces
            .get(device)
            .filter(|trace| !trace.is_empty())
        else {
            return;
        };
        let number = u32::try_from(device).unwrap_or(u32::MAX);
        let arena = u32::try_from(self.arenas.len()).unwrap_or(u32::MAX);
        self.arenas.push(TapeArena {
            device: number,
            ..TapeArena::default()
        });
        let began = trace.first().map_or(0, |event| event.time_us);
        let mut live = HashMap::new();
        for (address, size) in before(snapshot, number) {
            let what = self.alloc(&mut live, address, size);
            self.push(arena, 0, what);
        }
        for event in trace {
            let time_us = event.time_us.saturating_sub(began);
            let what = match event.action {
                TraceAction::Alloc => self.alloc(&mut live, event.address, event.size),
                TraceAction::FreeRequested => match live.remove(&event.address) {
                    Some(block) => What::Free {
                        block,
                        address: event.address,
                    },
                    None => continue,
                },
                TraceAction::Other => continue,
            };
            self.push(arena, time_us, what);
        }
    }

    fn alloc(&mut self, live: &mut HashMap<u64, u32>, address: u64, size: u64) -> What {
        let block = self.blocks;
        self.blocks += 1;
        live.insert(address, block);
        What::Alloc {
            block,
            address,
            size,
        }
    }

    fn push(&mut self, arena: u32, time_us: u64, what: What) {
        self.items.push(Item {
            what,
            arena,
            thread: 1,
            event: 0,
            time_us,
        });
    }
}

/// The blocks of a device that were live when its trace began, each with its size.
fn before(snapshot: &TorchSnapshot, device: u32) -> Vec<(u64, u64)> {
    let trace = snapshot.traces.get(device as usize).into_iter().flatten();
    let mut came = HashSet::new();
    let mut before = Vec::new();
    for event in trace {
        match event.action {
            TraceAction::Alloc => _ = came.insert(event.address),
            TraceAction::FreeRequested if !came.remove(&event.address) => {
                before.push((event.address, event.size));
            }
            TraceAction::FreeRequested | TraceAction::Other => {}
        }
    }
    let left = snapshot.live.iter().filter(|block| block.device == device);
    let left = left.filter(|block| !came.contains(&block.address));
    before.extend(left.map(|block| (block.address, block.size)));
    before
}
