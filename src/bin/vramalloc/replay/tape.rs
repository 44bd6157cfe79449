//! A recording in memory, as it is replayed: what the program did, and what the driver
//! answered.
//!
//! Invariant: items are in the order of the recording, and an item that names a block
//! names one that an earlier item brought. Arenas whose memory lies on the host are left
//! out. Cost: some 60 bytes an item; that a freed block became available is no item,
//! since it follows from the rest.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Read, Seek};

use serde::Deserialize;
use vramalloc_core::config::{DeviceShare, Loaded};
use vramalloc_core::recording::{
    ArenaOrder, Entry, FenceSeen, Found, Mark, RecordReader, Standing,
};
use vramalloc_core::stats::{Action, Event, Family};

use super::super::recording::DEVICE;
use super::super::statistics::{self, Setting};

/// A block by its number, in the order in which blocks came.
pub(crate) type BlockNumber = u32;

/// What happened.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) enum What {
    /// The program got a block.
    Alloc {
        block: BlockNumber,
        address: u64,
        size: u64,
    },
    /// The program freed a block.
    Free { block: BlockNumber, address: u64 },
    /// A request failed for want of memory.
    Oom { size: u64 },
    /// The arena's context has ended.
    Ended,
    /// Idle memory was asked back.
    Trim,
    /// The arena was asked for something else.
    Order(ArenaOrder),
    /// A capture began or ended, in whatever arena's stream.
    Capture { begins: bool },
    /// The limit of the arena's device was changed.
    Limit(Option<DeviceShare>),
    /// The driver gave memory.
    Taken { address: u64, size: u64 },
    /// The driver gave none.
    Refused { size: u64, code: u32 },
    /// How many units of a call were created before the driver refused the next.
    Created(u64),
    /// The driver got memory back.
    GivenBack { address: u64, size: u64 },
    /// Memory was mapped.
    Mapped { address: u64, size: u64 },
    /// Memory was unmapped.
    Unmapped { address: u64, size: u64 },
    /// The driver said what the device has, of which the program had so much.
    Memory {
        free: u64,
        total: u64,
        reserved: u64,
    },
    /// The driver said what mapped memory there is.
    Mapping { granule: u64, unmaps_runs: bool },
    /// Addresses were reserved.
    Reserved { address: u64, size: u64 },
    /// Whether the device had nothing to do, where that was asked.
    Quiet(bool),
    /// How the fence is reached that the arena's next item says is.
    Seen(FenceSeen),
    /// An epoch got its fence.
    Fence(u64),
    /// The fence of an epoch was seen to be reached.
    Reached(u64),
}

impl What {
    /// Whether the program did it.
    pub(crate) fn is_of_program(self) -> bool {
        matches!(
            self,
            What::Alloc { .. }
                | What::Free { .. }
                | What::Oom { .. }
                | What::Ended
                | What::Trim
                | What::Order(_)
        )
    }
}

/// What happened, where and when.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) struct Item {
    pub(crate) what: What,
    /// The arena's place in [`Tape::arenas`].
    pub(crate) arena: u32,
    pub(crate) thread: u32,
    /// Which event of the file says so, from 1.
    pub(crate) event: u32,
    /// Microseconds since the first.
    pub(crate) time_us: u64,
}

/// An arena of a device's memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TapeArena {
    pub(crate) device: u32,
    /// The device's memory.
    pub(crate) total: u64,
    /// What of it CUDA and others had before the arena took any; nothing where that is
    /// not told.
    pub(crate) elsewhere: Option<u64>,
    /// The most that may be reserved on the device.
    pub(crate) limit: Option<u64>,
    /// Its context, where that is told: it shares it with the arenas of regions.
    pub(crate) context: Option<u64>,
    /// Whether it serves one stream.
    pub(crate) is_lane: bool,
}

/// See the module.
pub(crate) struct Tape {
    /// The options that the program ran with; none where the file is of another
    /// allocator.
    pub(crate) options: Option<BTreeMap<String, Setting>>,
    pub(crate) arenas: Vec<TapeArena>,
    pub(crate) items: Vec<Item>,
    /// How many events the file has.
    pub(crate) events: u32,
    /// How many blocks there are in all.
    pub(crate) blocks: u32,
    /// What the program had memory by past the pool, of which the tape tells nothing.
    pub(crate) past: BTreeSet<Family>,
    /// Why it is not the whole past of the program, if it is not.
    pub(crate) lacks: Option<String>,
    /// Whether the program came to its end.
    pub(crate) is_ended: bool,
    /// Whether the file was cut off.
    pub(crate) is_cut: bool,
}

/// What a recording says of its process.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    options: BTreeMap<String, Setting>,
}

/// What a recording says of an arena.
#[derive(Deserialize)]
struct ArenaTold {
    #[serde(default)]
    place: String,
    device: Option<u32>,
    #[serde(default)]
    device_total_bytes: Option<u64>,
    #[serde(default)]
    limit_bytes: Option<u64>,
    #[serde(default)]
    context: Option<u64>,
    #[serde(default)]
    lane: bool,
}

impl Tape {
    /// Reads a recording.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(crate) fn read<R: Read + Seek>(file: R) -> Result<Tape, String> {
        let mut reader = RecordReader::open(file).map_err(|error| error.to_string())?;
        let head: Head = serde_json::from_str(reader.text())
            .map_err(|_| "it does not say which options its program had".to_owned())?;
        let mut reading = Reading::new(&head.options)?;
        while let Some(entry) = reader.next_entry().map_err(|error| error.to_string())? {
            reading.enter(&entry)?;
        }
        let totals = reader.totals();
        let lost = reader.lost() > 0 || reader.standing() == Standing::Full;
        let damaged = totals.damaged > 0 || totals.missing > 0;
        let lacks = if reader.begins_late() {
            Some("it is a ring whose oldest events are gone")
        } else if reading.has_gaps || lost {
            Some("events found no room in it")
        } else if damaged {
            Some("a part of it is damaged or missing")
        } else if let Some(number) = reading.unknown {
            return Err(format!("it does not tell what its arena {number} is"));
        } else if reading.blocks == 0 {
            Some("it has no request for device memory that was served")
        } else {
            None
        };
        Ok(Tape {
            options: Some(head.options),
            arenas: reading.arenas,
            items: reading.items,
            events: reading.events,
            blocks: reading.blocks,
            past: reading.past,
            lacks: lacks.map(str::to_owned),
            is_ended: reader.standing() == Standing::Ended && !totals.is_cut,
            is_cut: totals.is_cut,
        })
    }

    /// The options of the program, with these in their place.
    ///
    /// # Errors
    /// What cannot be read of the options that are given.
    pub(crate) fn loaded(&self, changed: &[(String, String)]) -> Result<Loaded, String> {
        loaded(self.options.iter().flatten(), changed)
    }

    /// The devices that it has memory of, by number.
    pub(crate) fn devices(&self) -> Vec<u32> {
        let mut devices: Vec<u32> = self.arenas.iter().map(|arena| arena.device).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// What CUDA and others had of a device before the program took any of it: the most
    /// of all devices; nothing where that is not known.
    pub(crate) fn of_cuda(&self) -> Option<u64> {
        let elsewhere = self.arenas.iter().filter_map(|arena| arena.elsewhere);
        elsewhere.max()
    }

    /// The memory of the largest device; nothing where one is not known.
    pub(crate) fn total(&self) -> Option<u64> {
        let totals = self.arenas.iter().map(|arena| arena.total);
        let is_known = !totals.clone().any(|total| total == 0);
        totals.max().filter(|_| is_known)
    }

    /// How long the program ran, as far as it was recorded.
    pub(crate) fn length_us(&self) -> u64 {
        self.items.last().map_or(0, |item| item.time_us)
    }
}

/// The options that were given, with these in their place.
fn loaded<'a>(
    given: impl Iterator<Item = (&'a String, &'a Setting)>,
    changed: &[(String, String)],
) -> Result<Loaded, String> {
    let loaded = statistics::loaded(given, changed);
    match loaded.warnings.first() {
        Some(warning) => Err(warning.clone()),
        None => Ok(loaded),
    }
}

struct Reading {
    /// The options in force.
    options: Loaded,
    events: u32,
    arenas: Vec<TapeArena>,
    /// By the number in the recording; none of those that are left out.
    places: HashMap<u32, Option<u32>>,
    items: Vec<Item>,
    /// The live blocks by arena and address.
    live: HashMap<(u32, u64), BlockNumber>,
    blocks: u32,
    began_us: Option<u64>,
    /// What the request asked for that fails next.
    wanted: Option<u64>,
    has_gaps: bool,
    /// An arena that events name and nothing tells of.
    unknown: Option<u32>,
    past: BTreeSet<Family>,
    is_limit_changed: bool,
}

impl Reading {
    fn new(options: &BTreeMap<String, Setting>) -> Result<Reading, String> {
        Ok(Reading {
            options: loaded(options.iter(), &[])?,
            events: 0,
            arenas: Vec::new(),
            places: HashMap::new(),
            items: Vec::new(),
            live: HashMap::new(),
            blocks: 0,
            began_us: None,
            wanted: None,
            has_gaps: false,
            unknown: None,
            past: BTreeSet::new(),
            is_limit_changed: false,
        })
    }

    fn enter(&mut self, entry: &Entry) -> Result<(), String> {
        self.events = self.events.saturating_add(1);
        self.began_us.get_or_insert(entry.time_us);
        if let Found::Mark(Mark::Arena { arena, text }) = &entry.found {
            return self.arena(*arena, text, entry);
        }
        if let Found::Mark(Mark::Option { key, value }) = &entry.found {
            self.option(key, value, entry);
            return Ok(());
        }
        let arena = match entry.arena {
            Some(number) => match self.places.get(&number) {
                Some(place) => *place,
                None => {
                    self.unknown.get_or_insert(number);
                    None
                }
            },
            None => None,
        };
        let Some(what) = self.what(arena, &entry.found) else {
            return Ok(());
        };
        self.push(what, arena.unwrap_or(u32::MAX), entry);
        Ok(())
    }

    fn push(&mut self, what: What, arena: u32, entry: &Entry) {
        let began = self.began_us.unwrap_or(entry.time_us);
        self.items.push(Item {
            what,
            arena,
            thread: entry.thread,
            event: self.events,
            time_us: entry.time_us.saturating_sub(began),
        });
    }

    /// An option was changed. Of those that can be, only limits change what is served.
    fn option(&mut self, key: &str, value: &str, entry: &Entry) {
        if !matches!(key, "limit" | "device_limits") {
            return;
        }
        // The program could change it: so it can be read.
        let _unread = self.options.change(key, value, |_| true);
        self.is_limit_changed = true;
        for (place, _) in (0..).zip(self.arenas.clone()) {
            self.limit(place, entry);
        }
    }

    /// The limit of an arena's device, as the options in force have it.
    fn limit(&mut self, place: u32, entry: &Entry) {
        let device = self.arenas.get(place as usize).map(|arena| arena.device);
        let limit = self.options.settings.config.limit_of(device);
        self.push(What::Limit(limit), place, entry);
    }

    fn arena(&mut self, number: u32, text: &str, entry: &Entry) -> Result<(), String> {
        let told: ArenaTold = serde_json::from_str(text)
            .map_err(|_| format!("it does not tell what its arena {number} is"))?;
        if self.places.contains_key(&number) {
            // Told anew, as in each quarter of a ring.
            return Ok(());
        }
        let place = (told.place == DEVICE).then(|| {
            self.arenas.push(TapeArena {
                device: told.device.unwrap_or(0),
                total: told.device_total_bytes.unwrap_or(0),
                elsewhere: None,
                limit: told.limit_bytes,
                context: told.context,
                is_lane: told.lane,
            });
            u32::try_from(self.arenas.len() - 1).unwrap_or(u32::MAX)
        });
        self.places.insert(number, place);
        if let Some(place) = place.filter(|_| self.is_limit_changed) {
            self.limit(place, entry);
        }
        Ok(())
    }

    /// What an entry is on the tape; nothing where it is of no arena that is there, or
    /// follows from the rest.
    fn what(&mut self, arena: Option<u32>, found: &Found) -> Option<What> {
        match found {
            Found::Event { event, told: None } => self.event(arena?, event),
            Found::Event { .. } => {
                // What is told anew is known, but where the recording begins late.
                None
            }
            Found::Mark(mark) => self.mark(arena, mark),
        }
    }

    fn event(&mut self, arena: u32, event: &Event) -> Option<What> {
        let size = event.size.get();
        Some(match event.action {
            Action::Alloc(address) => {
                let address = address.get();
                let block = self.blocks;
                self.blocks += 1;
                self.live.insert((arena, address), block);
                What::Alloc {
                    block,
                    address,
                    size,
                }
            }
            Action::FreeRequested(address) => {
                let address = address.get();
                let block = self.live.remove(&(arena, address))?;
                What::Free { block, address }
            }
            Action::SegmentAlloc(address) => What::Taken {
                address: address.get(),
                size,
            },
            Action::SegmentFree(address) => What::GivenBack {
                address: address.get(),
                size,
            },
            Action::SegmentMap(address) => What::Mapped {
                address: address.get(),
                size,
            },
            Action::SegmentUnmap(address) => What::Unmapped {
                address: address.get(),
                size,
            },
            _ => return None,
        })
    }

    fn mark(&mut self, arena: Option<u32>, mark: &Mark) -> Option<What> {
        let of_process = match mark {
            Mark::Capture { begins, .. } => Some(What::Capture { begins: *begins }),
            Mark::Gap(_) => {
                self.has_gaps = true;
                None
            }
            Mark::Past { family, .. } => {
                self.past.insert(*family);
                None
            }
            _ => None,
        };
        if of_process.is_some() {
            return of_process;
        }
        let place = arena?;
        Some(match mark {
            Mark::Wanted(request) => {
                self.wanted = Some(request.get());
                return None;
            }
            Mark::Oom { size, .. } => What::Oom {
                size: self.wanted.take().unwrap_or(size.get()),
            },
            Mark::Ended => What::Ended,
            Mark::Trim => What::Trim,
            Mark::Order(order) => What::Order(*order),
            Mark::Fence(number) => What::Fence(*number),
            Mark::Reached(number) => What::Reached(*number),
            Mark::Refused { size, code } => What::Refused {
                size: size.get(),
                code: *code,
            },
            Mark::Created(units) => What::Created(*units),
            Mark::Quiet(is_quiet) => What::Quiet(*is_quiet),
            Mark::Seen(seen) => What::Seen(*seen),
            Mark::Memory {
                free,
                total,
                reserved,
            } => {
                let told = self.arenas.get_mut(place as usize)?;
                if told.elsewhere.is_none() {
                    // Before it took anything; what the process has is not CUDA's.
                    let used = total.saturating_sub(*free);
                    told.elsewhere = Some(used.saturating_sub(*reserved).get());
                    told.total = total.get();
                    return None;
                }
                What::Memory {
                    free: free.get(),
                    total: total.get(),
                    reserved: reserved.get(),
                }
            }
            Mark::Mapping {
                granule,
                unmaps_runs,
            } => What::Mapping {
                granule: granule.get(),
                unmaps_runs: *unmaps_runs,
            },
            Mark::Reserved { address, size } => What::Reserved {
                address: *address,
                size: size.get(),
            },
            _ => return None,
        })
    }
}
