//! How much memory real programs need: the smallest model device on which three
//! passes over a trace complete, and what happens there and on a device with
//! ample memory.
//!
//! The host runs ahead of the device as far as it can: no time passes between
//! driver calls, and if the device lags, a kernel of the given length is
//! launched before every fourth event.

use serde_json::{Value, json};
use std::sync::Arc;
use vramalloc_core::Arena;
use vramalloc_core::address::{Address, Bytes};
use vramalloc_core::config::{Config, StrategyKind};
use vramalloc_core::driver::PAGE;
use vramalloc_core::error::AllocError;
use vramalloc_core::page_map::PageMap;
use vramalloc_model::{Gpu, Settings, SimDriver, StreamId};

use crate::arguments::Arguments;
use vramalloc_benches::driver::arena_with;
use vramalloc_tests::traces::{Event, events};

/// Passes over a trace.
const PASSES: usize = 3;

/// The memory of a device on which there is always enough.
const ROOMY: Bytes = Bytes::gib(160);

/// A device of so many percent more than what is live has what a program that repeats
/// needs.
const NEAR: u64 = 3;

/// Requests up to this size share pages in the page bound.
const SHARES: Bytes = Bytes::mib(1);

const SLOT: Bytes = Bytes::new(512);

/// A trace, and the least memory that it needs.
struct Trace {
    name: String,
    events: Vec<Event>,
    /// The most bytes live, each block in whole slots of 512.
    live: u64,
    /// As `live`, with each block above 1 MiB in whole pages of 2 MiB and the
    /// others packed: the bound if large blocks do not share pages.
    paged: u64,
}

impl Trace {
    fn read(name: &str) -> Trace {
        let is_whole = name.contains('.');
        let events = events(&if is_whole {
            name.to_owned()
        } else {
            format!("{name}.1")
        });
        let mut sizes = vec![Bytes::ZERO; events.len()];
        let (mut live, mut packed, mut pages) = (0, 0, 0);
        let mut trace = Trace {
            name: name.to_owned(),
            events,
            live: 0,
            paged: 0,
        };
        for &(id, size) in &trace.events {
            let known = &mut sizes[usize::try_from(id).unwrap()];
            let freed = std::mem::replace(known, size.unwrap_or(Bytes::ZERO));
            for (bytes, comes) in [(*known, true), (freed, false)] {
                let slots = bytes.round_up(SLOT).unwrap().get();
                let whole = bytes.round_up(PAGE).unwrap().get();
                let (sum, size) = if bytes > SHARES {
                    (&mut pages, whole)
                } else {
                    (&mut packed, slots)
                };
                if comes {
                    live += slots;
                    *sum += size;
                } else {
                    live -= slots;
                    *sum -= size;
                }
            }
            trace.live = trace.live.max(live);
            let packed = Bytes::new(packed).round_up(PAGE).unwrap().get();
            trace.paged = trace.paged.max(pages + packed);
        }
        trace
    }
}

/// A program on a device of its own.
struct Program {
    gpu: Gpu,
    arena: Arena<SimDriver>,
    stream: StreamId,
    kernel_ns: u64,
    calls: Vec<Value>,
}

impl Program {
    fn new(config: &Config, memory: Bytes, kernel_ns: u64) -> Program {
        let settings = Settings {
            memory,
            // Of addresses there are many more than of memory: a strategy may reserve
            // several ranges as large as the device.
            span: Bytes::new(memory.get() * 16).round_up(PAGE).unwrap(),
            ..Settings::default()
        };
        let gpu = Gpu::new(settings);
        let driver = gpu.driver(0).unwrap();
        let stream = gpu.stream(driver.context(), false).unwrap();
        let map = Arc::new(PageMap::new());
        Program {
            arena: arena_with(driver, 0, config, &map),
            gpu,
            stream,
            kernel_ns,
            calls: Vec::new(),
        }
    }

    fn pass(&mut self, trace: &Trace) -> Result<(), AllocError> {
        let mut live: Vec<Option<Address>> = vec![None; trace.events.len()];
        for (n, &(id, size)) in trace.events.iter().enumerate() {
            if self.kernel_ns > 0 && n % 4 == 0 {
                self.gpu.launch(self.stream, self.kernel_ns, &[]).unwrap();
                // A launch takes the host as long as any call.
                self.gpu.pass(Settings::default().call_ns);
            }
            let place = &mut live[usize::try_from(id).unwrap()];
            match size {
                Some(size) => *place = Some(self.arena.allocate(size)?),
                None => self.free(place.take()),
            }
        }
        live.into_iter().for_each(|block| self.free(block));
        self.calls.push(self.calls_so_far());
        Ok(())
    }

    fn calls_so_far(&self) -> Value {
        let calls = self.arena.driver_calls();
        let mapping = &calls.mapping;
        json!({
            "alloc": calls.alloc.calls, "free": calls.free.calls,
            "reserve": mapping.reserve.calls, "create": mapping.create.calls,
            "map": mapping.map.calls, "set_access": mapping.set_access.calls,
            "unmap": mapping.unmap.calls, "release": mapping.release.calls,
            "fence": calls.fence.calls, "reached": calls.reached.calls,
            "wait": calls.wait.calls, "mem_info": calls.mem_info.calls,
        })
    }

    fn free(&self, block: Option<Address>) {
        if let Some(block) = block {
            self.arena.free(block).unwrap();
        }
    }

    /// Runs all passes; returns whether the device was large enough.
    fn completes(&mut self, trace: &Trace) -> bool {
        let ended = (0..PASSES).try_for_each(|_| self.pass(trace));
        match ended {
            Ok(()) => true,
            Err(AllocError::Driver(code)) if code == vramalloc_core::Code::OUT_OF_MEMORY => false,
            Err(error) => panic!("{}: {error:?}", trace.name),
        }
    }

    fn report(&self) -> Value {
        let stats = self.arena.stats();
        json!({
            "reserved_peak": stats.reserved.peak.get(),
            "calls": self.calls,
            "waits": stats.waits,
            "simulated_ms": self.gpu.now() / 1_000_000,
        })
    }
}

/// The smallest device in whole pages on which all passes complete, and the
/// program on it. Found by growing steps and then by bisection, which assumes
/// that a larger device never does worse.
fn smallest(trace: &Trace, try_one: &dyn Fn(Bytes) -> Program) -> (u64, Program) {
    let pages = |size: u64| size.div_ceil(PAGE.get());
    let attempt = |count: u64| {
        let mut program = try_one(Bytes::new(count * PAGE.get()));
        program.completes(trace).then_some(program)
    };
    // Less than the live bytes is never enough.
    let mut low = pages(trace.live) - 1;
    let mut step = 1 + low / 256;
    let (mut high, mut best) = loop {
        if let Some(program) = attempt(low + step) {
            break (low + step, program);
        }
        low += step;
        step *= 2;
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match attempt(middle) {
            Some(program) => (high, best) = (middle, program),
            None => low = middle,
        }
    }
    (high * PAGE.get(), best)
}

fn strategy_of(name: &str) -> StrategyKind {
    match name {
        "auto_growth" => StrategyKind::AutoGrowth,
        "mapped" => StrategyKind::Mapped,
        "naive_best_fit" => StrategyKind::NaiveBestFit,
        "passthrough" => StrategyKind::Passthrough,
        _ => panic!("no strategy {name}"),
    }
}

/// Prints a trace as those of `tests/traces` are: `trace=dataframe`.
pub(crate) fn print(arguments: &Arguments) {
    let trace = Trace::read(arguments.text("trace", "dataframe"));
    let mut sizes = vec![Bytes::ZERO; trace.events.len()];
    for &(id, size) in &trace.events {
        let known = &mut sizes[usize::try_from(id).unwrap()];
        *known = size.unwrap_or(*known);
        let kind = size.map_or('f', |_| 'a');
        println!("{kind},{id},{},0", known.get());
    }
}

/// Measures one trace under one strategy, with kernels of the given length
/// before every fourth event:
/// `trace=gpt_train strategy=auto_growth kernel_ns=50000`.
pub(crate) fn run(arguments: &Arguments) {
    let trace = Trace::read(arguments.text("trace", "gpt_train"));
    let strategy = arguments.text("strategy", "auto_growth");
    let kernel_ns = arguments.number("kernel_ns", 0);
    let config = Config {
        strategy: strategy_of(strategy),
        ..Config::default()
    };
    let start = |memory| Program::new(&config, memory, kernel_ns);
    let (bytes, program) = smallest(&trace, &start);
    let mut near = start(
        Bytes::new(trace.live / 100 * (100 + NEAR))
            .round_up(PAGE)
            .unwrap(),
    );
    let near = near.completes(&trace).then(|| near.report());
    let mut roomy = start(ROOMY);
    assert!(roomy.completes(&trace), "{ROOMY} are not enough");
    println!(
        "{}",
        json!({
            "trace": trace.name, "strategy": strategy, "kernel_ns": kernel_ns,
            "events": trace.events.len(), "live": trace.live, "paged": trace.paged,
            "smallest": bytes, "tight": program.report(), "near": near,
            "roomy": roomy.report(),
        })
    );
}
