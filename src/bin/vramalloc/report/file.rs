//! A statistics file, as values.
//!
//! Invariant: all values are read at once, so a file is found to be wrong from
//! the start or not at all. Keys that were added to the schema's first version
//! later are `None` if the file is older.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use vramalloc_core::stats::{Metric, SCHEMA};

use super::super::output::plain;
use super::ooms::{Ooms, Stacks};

/// One process.
pub(super) struct File {
    pub(super) program: String,
    pub(super) pid: u64,
    pub(super) host: String,
    pub(super) rank: String,
    pub(super) version: String,
    /// Unix time, ms.
    pub(super) started: u64,
    /// Unix time, ms.
    pub(super) ended: u64,
    /// Whether it was written at the end of the process.
    pub(super) last: bool,
    pub(super) options: Vec<Setting>,
    pub(super) warnings: Vec<String>,
    /// Whether lanes serve streams, or why not; `None` in older files.
    pub(super) lanes: Option<String>,
    pub(super) arenas: Vec<Arena>,
    /// Arenas of page-locked host memory.
    pub(super) hosts: Vec<HostArena>,
    /// The arena of pageable host memory.
    pub(super) pageable: Option<Arena>,
    /// Call stacks by number, in words.
    pub(super) stacks: BTreeMap<u64, String>,
}

/// An option that was in force.
pub(super) struct Setting {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) origin: String,
}

/// A quantity and its peak, in bytes.
#[derive(Copy, Clone, Default)]
pub(super) struct Gauge {
    pub(super) current: u64,
    pub(super) peak: u64,
}

/// Calls of one kind to the driver.
pub(super) struct Calls {
    pub(super) kind: String,
    pub(super) calls: u64,
    pub(super) failures: u64,
    pub(super) ns: u64,
}

/// Memory of one device context.
pub(super) struct Arena {
    pub(super) device: u64,
    pub(super) device_name: Option<String>,
    pub(super) device_total: Option<u64>,
    pub(super) lane: bool,
    /// Whether its chunks are packed, or why not; `None` in older files.
    pub(super) packing: Option<String>,
    /// When its context ended, Unix time in ms, if it ended before the process.
    pub(super) ended: Option<u64>,
    pub(super) live: Gauge,
    pub(super) cached: Gauge,
    pub(super) limbo: Gauge,
    pub(super) reserved: Gauge,
    pub(super) largest_cached: u64,
    pub(super) fragmentation: f64,
    pub(super) allocations: u64,
    pub(super) frees: u64,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) direct: u64,
    pub(super) epochs: u64,
    pub(super) waits: u64,
    pub(super) wait_ns: u64,
    pub(super) ooms: u64,
    pub(super) limit_ooms: u64,
    pub(super) bad_frees: u64,
    pub(super) calls: Vec<Calls>,
    pub(super) failed: Ooms,
    pub(super) details: Option<Details>,
}

/// Page-locked memory of one context, requested with the same flags.
pub(super) struct HostArena {
    pub(super) context: u64,
    /// `None`: without flags.
    pub(super) flags: Option<u64>,
    pub(super) arena: Arena,
}

/// The values of files that have PyTorch's statistics.
pub(super) struct Details {
    pub(super) idle_low: u64,
    /// When the most was reserved.
    pub(super) at_peak: Parts,
    pub(super) fragmented_misses: u64,
    pub(super) limbo_misses: u64,
    pub(super) longest_wait_ns: u64,
    pub(super) budget_waits: u64,
    pub(super) budget_wait_ns: u64,
    pub(super) fragmented_ooms: u64,
    /// How many failed requests a higher limit serves, and how much the largest
    /// needs; `None` in older files.
    pub(super) raisable: Option<(u64, u64)>,
    pub(super) largest_oom: u64,
    pub(super) classes: Vec<Class>,
    pub(super) memory: Memory,
}

/// What reserved memory was used for; `idle` is chunks without a live block.
pub(super) struct Parts {
    pub(super) live: u64,
    pub(super) cached: u64,
    pub(super) idle: u64,
    pub(super) limbo: u64,
}

/// What was live at the peak of one size class.
pub(super) struct Class {
    /// The largest request; `None`: no bound.
    pub(super) up_to: Option<u64>,
    pub(super) live_blocks: u64,
    pub(super) peak_blocks: u64,
    pub(super) peak_bytes: u64,
}

/// PyTorch's numbers that the report shows.
pub(super) struct Memory {
    /// By metric, each of `all`, `large_pool`, `small_pool`.
    metrics: [[Four; 3]; Metric::COUNT],
    pub(super) oversize_allocations: Four,
    pub(super) oversize_segments: Four,
    pub(super) retries: u64,
    pub(super) ooms: u64,
    pub(super) rejections: u64,
}

/// Current, peak, sum of increases, sum of decreases.
pub(super) type Four = [u64; 4];

impl Memory {
    /// Of `all`, `large_pool`, `small_pool`.
    pub(super) fn pools(&self, metric: Metric) -> &[Four; 3] {
        &self.metrics[metric as usize]
    }

    /// The peak of both pools together.
    pub(super) fn peak(&self, metric: Metric) -> u64 {
        self.pools(metric)[0][1]
    }
}

impl Arena {
    /// Time spent in calls of these kinds, in ns.
    pub(super) fn driver_ns(&self, kinds: &[&str]) -> u64 {
        let of_kind = |calls: &&Calls| kinds.is_empty() || kinds.contains(&calls.kind.as_str());
        let ns = self.calls.iter().filter(of_kind).map(|calls| calls.ns);
        ns.fold(0, u64::saturating_add)
    }
}

/// The contents of a file; of its snapshot only the call stacks.
#[derive(Deserialize)]
struct Contents {
    snapshot: Option<Stacks>,
    #[serde(flatten)]
    value: Map<String, Value>,
}

impl File {
    /// Reads a file.
    ///
    /// # Errors
    /// One line that says what is wrong with it.
    pub(super) fn read(bytes: &[u8]) -> Result<File, String> {
        let Contents { value, snapshot } = serde_json::from_slice(bytes).map_err(|error| {
            // The error may quote the file.
            format!("not statistics of vramalloc: {}", plain(&error.to_string()))
        })?;
        let value = Value::Object(value);
        match value.get("schema").and_then(Value::as_u64) {
            Some(schema) if schema == u64::from(SCHEMA) => {}
            Some(schema) => {
                return Err(format!(
                    "schema {schema}, but this command reads schema {SCHEMA}"
                ));
            }
            None => return Err("not statistics of vramalloc: no schema".to_owned()),
        }
        let arenas = list(&value, "arenas")?.iter().enumerate();
        let arenas = arenas
            .map(|(i, value)| arena(value).map_err(|error| format!("arenas[{i}].{error}")))
            .collect::<Result<_, _>>()?;
        let hosts = match value.get("host_arenas") {
            None => &Vec::new(),
            Some(_) => list(&value, "host_arenas")?,
        };
        let hosts = (hosts.iter().enumerate())
            .map(|(i, value)| host(value).map_err(|error| format!("host_arenas[{i}].{error}")))
            .collect::<Result<_, _>>()?;
        let pageable = (value.get("pageable").filter(|pageable| !pageable.is_null()))
            .map(|value| counted(value, 0).map_err(|error| format!("pageable.{error}")))
            .transpose()?;
        let warnings = list(&value, "warnings")?.iter();
        let warnings = warnings
            .map(|warning| warning.as_str().map(plain))
            .collect::<Option<_>>()
            .ok_or("a warning is not a text")?;
        Ok(File {
            program: text(&value, "program")?,
            pid: number(&value, "pid")?,
            host: text(&value, "host")?,
            rank: text(&value, "rank")?,
            version: text(&value, "library_version")?,
            started: number(&value, "started_unix_ms")?,
            ended: number(&value, "ended_unix_ms")?,
            last: value.get("final") != Some(&Value::Bool(false)),
            options: object(&value, "options")?
                .iter()
                .map(|(key, option)| {
                    Ok(Setting {
                        key: plain(key),
                        value: text(option, "value")?,
                        origin: text(option, "origin")?,
                    })
                })
                .collect::<Result<_, String>>()?,
            warnings,
            lanes: value.get("lanes").and_then(Value::as_str).map(plain),
            arenas,
            hosts,
            pageable,
            stacks: snapshot.unwrap_or_default().in_words(),
        })
    }

    /// How long the process ran until the statistics were taken, in ns.
    pub(super) fn ran_ns(&self) -> u64 {
        self.ended
            .saturating_sub(self.started)
            .saturating_mul(1_000_000)
    }

    /// The value of an option; `None` if the library had no such option.
    pub(super) fn option(&self, key: &str) -> Option<&str> {
        let option = self.options.iter().find(|option| option.key == key)?;
        Some(&option.value)
    }
}

fn arena(value: &Value) -> Result<Arena, String> {
    counted(value, number(value, "device")?)
}

fn host(value: &Value) -> Result<HostArena, String> {
    Ok(HostArena {
        context: number(value, "context")?,
        flags: value.get("flags").and_then(Value::as_u64),
        arena: arena(value)?,
    })
}

/// An arena of any memory, for the device with this ordinal.
fn counted(value: &Value, device: u64) -> Result<Arena, String> {
    let fragmentation = value.get("fragmentation").and_then(Value::as_f64);
    Ok(Arena {
        device,
        device_name: value.get("device_name").and_then(Value::as_str).map(plain),
        device_total: value.get("device_total_bytes").and_then(Value::as_u64),
        // Files of older libraries, which had no lanes, do not say.
        lane: value.get("lane").and_then(Value::as_bool).unwrap_or(false),
        packing: value.get("packing").and_then(Value::as_str).map(plain),
        ended: value.get("ended_unix_ms").and_then(Value::as_u64),
        live: gauge(value, "live_bytes")?,
        cached: gauge(value, "cached_bytes")?,
        limbo: gauge(value, "limbo_bytes")?,
        reserved: gauge(value, "reserved_bytes")?,
        largest_cached: number(value, "largest_cached_bytes")?,
        fragmentation: fragmentation.ok_or("fragmentation is missing or not a number")?,
        allocations: number(value, "allocations")?,
        frees: number(value, "frees")?,
        hits: number(value, "hits")?,
        misses: number(value, "misses")?,
        direct: number(value, "direct")?,
        epochs: number(value, "epochs")?,
        waits: number(value, "waits")?,
        wait_ns: number(value, "wait_ns")?,
        ooms: number(value, "ooms")?,
        limit_ooms: number(value, "limit_ooms")?,
        bad_frees: number(value, "bad_frees")?,
        calls: object(value, "driver_calls")?
            .iter()
            .map(|(kind, value)| {
                Ok(Calls {
                    kind: plain(kind),
                    calls: number(value, "calls")?,
                    failures: number(value, "failures")?,
                    ns: number(value, "total_ns")?,
                })
            })
            .collect::<Result<_, String>>()?,
        failed: Ooms::read(value)?,
        details: match value.get("memory_stats") {
            None => None,
            Some(memory) => Some(details(value, memory)?),
        },
    })
}

fn details(value: &Value, memory: &Value) -> Result<Details, String> {
    let classes = list(value, "size_classes")?.iter();
    Ok(Details {
        idle_low: number(value, "idle_low_bytes")?,
        at_peak: Parts {
            live: number(value, "at_reserved_peak.live_bytes")?,
            cached: number(value, "at_reserved_peak.cached_bytes")?,
            idle: number(value, "at_reserved_peak.idle_bytes")?,
            limbo: number(value, "at_reserved_peak.limbo_bytes")?,
        },
        fragmented_misses: number(value, "fragmented_misses")?,
        limbo_misses: number(value, "limbo_misses")?,
        longest_wait_ns: number(value, "longest_wait_ns")?,
        budget_waits: number(value, "budget_waits")?,
        budget_wait_ns: number(value, "budget_wait_ns")?,
        fragmented_ooms: number(value, "fragmented_ooms")?,
        raisable: match value.get("raisable_ooms") {
            None => None,
            Some(_) => Some((
                number(value, "raisable_ooms")?,
                number(value, "limit_needed_bytes")?,
            )),
        },
        largest_oom: number(value, "largest_oom_bytes")?,
        classes: classes
            .map(|class| {
                Ok(Class {
                    up_to: class.get("up_to_bytes").and_then(Value::as_u64),
                    live_blocks: number(class, "live_blocks")?,
                    peak_blocks: number(class, "peak_blocks")?,
                    peak_bytes: number(class, "peak_bytes")?,
                })
            })
            .collect::<Result<_, String>>()?,
        memory: self::memory(memory).map_err(|error| format!("memory_stats: {error}"))?,
    })
}

fn memory(stats: &Value) -> Result<Memory, String> {
    // The keys have points of their own.
    let value = |key: &str| {
        stats
            .get(key)
            .and_then(Value::as_u64)
            .ok_or_else(|| format!("{key} is missing or not a number"))
    };
    let four = |metric: &str| -> Result<Four, String> {
        Ok([
            value(&format!("{metric}.current"))?,
            value(&format!("{metric}.peak"))?,
            value(&format!("{metric}.allocated"))?,
            value(&format!("{metric}.freed"))?,
        ])
    };
    let mut metrics = [[Four::default(); 3]; Metric::COUNT];
    for metric in Metric::ALL {
        for (pool, values) in ["all", "large_pool", "small_pool"]
            .into_iter()
            .zip(&mut metrics[metric as usize])
        {
            *values = four(&format!("{}.{pool}", metric.name()))?;
        }
    }
    Ok(Memory {
        metrics,
        oversize_allocations: four("oversize_allocations")?,
        oversize_segments: four("oversize_segments")?,
        retries: value("num_alloc_retries")?,
        ooms: value("num_ooms")?,
        rejections: value("num_oom_rejections")?,
    })
}

/// The value at a path of keys with points between.
fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, key| value.get(key))
}

pub(super) fn number(value: &Value, path: &str) -> Result<u64, String> {
    at(value, path)
        .and_then(Value::as_u64)
        .ok_or_else(|| format!("{path} is missing or not a number"))
}

fn text(value: &Value, path: &str) -> Result<String, String> {
    at(value, path)
        .and_then(Value::as_str)
        .map(plain)
        .ok_or_else(|| format!("{path} is missing or not a text"))
}

pub(super) fn list<'a>(value: &'a Value, path: &str) -> Result<&'a Vec<Value>, String> {
    at(value, path)
        .and_then(Value::as_array)
        .ok_or_else(|| format!("{path} is missing or not a list"))
}

fn object<'a>(value: &'a Value, path: &str) -> Result<&'a Map<String, Value>, String> {
    at(value, path)
        .and_then(Value::as_object)
        .ok_or_else(|| format!("{path} is missing or not an object"))
}

fn gauge(value: &Value, name: &str) -> Result<Gauge, String> {
    Ok(Gauge {
        current: number(value, &format!("{name}.current"))?,
        peak: number(value, &format!("{name}.peak"))?,
    })
}
