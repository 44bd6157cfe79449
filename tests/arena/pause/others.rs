//! Pauses of an arena that has others beside it on its device.

use std::sync::Arc;

use crate::rig::plain;
use vramalloc_core::address::Bytes;
use vramalloc_core::arena::{Arena, Contents, live_at};
use vramalloc_core::config::StrategyKind;
use vramalloc_core::error::Code;
use vramalloc_core::page_map::{ArenaId, PageMap};
use vramalloc_core::quota::Quota;
use vramalloc_model::{Gpu, Settings, SimDriver};

/// A device of 200 MiB, and what its arenas share.
struct Stage {
    gpu: Gpu,
    map: Arc<PageMap>,
    quota: Arc<Quota>,
}

impl Stage {
    fn new(limit: Bytes) -> Stage {
        let settings = Settings {
            memory: Bytes::mib(200),
            ..Settings::default()
        };
        Stage {
            gpu: Gpu::new(settings),
            map: Arc::new(PageMap::new()),
            quota: Arc::new(Quota::new(limit)),
        }
    }

    /// An arena of mapped memory, in a context of its own.
    fn arena(&self, number: u32) -> Arena<SimDriver> {
        let driver = self.gpu.driver(0).unwrap();
        let (map, quota) = (Arc::clone(&self.map), Arc::clone(&self.quota));
        let config = plain(StrategyKind::Mapped);
        Arena::new(ArenaId(number), driver, &config, map, quota)
    }
}

#[test]
fn another_arena_gives_idle_memory_back_for_a_resume() {
    let stage = Stage::new(Bytes::mib(180));
    let (gpu, quota) = (&stage.gpu, &stage.quota);
    let arena = |number| stage.arena(number);
    let other: Arc<Arena<SimDriver>> = Arc::new(arena(1));
    let idle = Arc::clone(&other);
    let relieve = move || idle.give_back_idle() > Bytes::ZERO;
    let first = arena(0).relieved_by(relieve, || None);
    let block = first.allocate(Bytes::mib(100)).unwrap();
    gpu.write_tag(block, Bytes::mib(100), 5);
    first.pause(Contents::Keep).unwrap();
    assert_eq!(quota.reserved(), Bytes::ZERO);
    let theirs = other.allocate(Bytes::mib(150)).unwrap();
    assert_eq!(first.resume(), Err(Code::OUT_OF_MEMORY));
    other.free(theirs).unwrap();
    other.flush();
    first.resume().unwrap();
    assert!(gpu.holds_tag(block, Bytes::mib(100), 5));
    assert_eq!(gpu.violations(), []);
}

#[test]
fn what_is_paused_stands_in_no_other_requests_way() {
    let stage = Stage::new(Bytes::MAX);
    let (gpu, arena) = (&stage.gpu, |number| stage.arena(number));
    let beside: [Arc<Arena<SimDriver>>; 2] = [Arc::new(arena(0)), Arc::new(arena(1))];
    let [paused, idle] = beside.clone();
    let (asked, held) = (Arc::clone(&idle), beside);
    let relieve = move || !asked.trim().is_zero();
    let live = move || live_at(&[&held[0], &held[1]], || Some(()));
    let own = arena(2).relieved_by(relieve, live);
    paused.allocate(Bytes::mib(120)).unwrap();
    paused.pause(Contents::Keep).unwrap();
    let theirs = idle.allocate(Bytes::mib(150)).unwrap();
    idle.free(theirs).unwrap();
    idle.flush();
    let served = own.allocate(Bytes::mib(160));
    assert!(served.is_ok(), "{served:?}");
    own.free(served.unwrap()).unwrap();
    own.trim();
    paused.resume().unwrap();
    // It is held again.
    let refused = own.allocate(Bytes::mib(160));
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(gpu.violations(), []);
}

/// What it has cached of plain memory may be what a resume lacks.
#[test]
fn an_arena_gives_its_own_idle_chunks_back_for_a_resume() {
    let stage = Stage::new(Bytes::MAX);
    let (gpu, arena) = (&stage.gpu, |number| stage.arena(number));
    let (own, other) = (arena(0), arena(1));
    let block = own.allocate(Bytes::mib(80)).unwrap();
    gpu.write_tag(block, Bytes::mib(80), 5);
    own.grow_plainly();
    let chunk = own.allocate(Bytes::mib(80)).unwrap();
    own.pause(Contents::Keep).unwrap();
    own.free(chunk).unwrap();
    other.allocate(Bytes::mib(100)).unwrap();
    own.resume().unwrap();
    assert!(gpu.holds_tag(block, Bytes::mib(80), 5));
    own.validate().unwrap();
    assert_eq!(gpu.violations(), []);
}
