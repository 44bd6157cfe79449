//! Statistics with call stacks, of files that are not on this machine.

use serde_json::{Value, json};

use super::{out_of_memory, with_owners};

/// A process that ran out of memory, with call stacks.
pub(crate) fn with_stacks() -> String {
    let mut statistics: Value = serde_json::from_str(&out_of_memory()).unwrap();
    let weight = |stack: Option<u64>, count: u64, mib: u64| json!({"stack": stack, "count": count, "bytes": mib << 20});
    let python = |file: &str, line: u32, function: &str| json!({"file": file, "line": line, "function": function});
    let native = |object: u64, offset: u64| json!({"object": object, "offset": offset});
    let mut frames = vec![
        native(0, 0x12_3456),
        native(1, 0xabc_def0),
        python("/home/u/train.py", 41, "forward"),
        python("/home/u/train.py", 80, "main"),
        python("/home/u/data/loader.py", 7, "Loader.__iter__"),
    ];
    let folder = "/usr/lib/python3/site-packages";
    let layers = [
        "SelfAttention.forward",
        "EncoderLayer.forward",
        "Module._call_impl",
    ];
    let lines = (100..).step_by(57);
    for (line, function) in lines.zip(layers.iter().cycle()).take(12) {
        let file = format!("{folder}/modeling_bert.py");
        frames.push(python(&file, line, function));
    }
    let stacks = [
        (0, vec![0, 1, 2, 3]),
        (1, vec![0, 1]),
        (2, vec![4, 3]),
        (3, [vec![0, 1], (5..17).collect(), vec![2, 3]].concat()),
    ];
    let stacks = stacks.map(|(stack, frames)| json!({"stack": stack, "frames": frames}));
    statistics["call_stacks"] = json!({
        "mode": "sampled", "sample_bytes": 8 << 20, "taken": 9_000, "cut": 12, "untaken": 0, "dropped": 1,
        "python": {"version": "3.12", "read": true, "reason": null},
        "objects": [{"file": "/opt/venv/torch/lib/libc10_cuda.so", "build_id": "0123456789abcdef"},
                    {"file": "/opt/venv/torch/lib/libtorch_cuda.so", "build_id": null}],
        "frames": frames, "stacks": stacks,
        "peak": [weight(Some(3), 120, 41_000), weight(Some(0), 64, 12_500), weight(Some(1), 30, 2_400),
                 weight(Some(2), 9, 540), weight(None, 1, 64)],
        "live": [weight(Some(2), 9, 540)],
        "failed": [weight(Some(3), 2, 4_094), weight(Some(1), 1, 2_047)],
    });
    for oom in statistics["arenas"][0]["oom_events"]
        .as_array_mut()
        .unwrap()
    {
        oom["stack"] = 3.into();
        oom["live_stacks"] = json!([
            weight(Some(3), 118, 40_300),
            weight(Some(0), 64, 12_500),
            weight(Some(1), 30, 2_400),
        ]);
    }
    statistics.to_string()
}

/// Two runs of a library that tells of owners and call stacks.
pub(crate) fn two_runs() -> [String; 2] {
    let mut before: Value = serde_json::from_str(&with_stacks()).unwrap();
    let owners: Value = serde_json::from_str(&with_owners()).unwrap();
    before["owners"] = owners["owners"].clone();
    let mut after = before.clone();
    let add = |value: &mut Value, mib: u64| *value = (value.as_u64().unwrap() + (mib << 20)).into();
    add(&mut after["arenas"][0]["live_bytes"]["peak"], 3_072);
    add(&mut after["owners"][0]["peak_bytes"], 3_072);
    after["owners"][4]["owner"] = "libcustom_kernels_for_inference.so.1.4.2".into();
    let held = after["call_stacks"]["peak"].as_array_mut().unwrap();
    add(&mut held[0]["bytes"], 3_000);
    held.remove(3);
    after["call_stacks"]["frames"][2]["line"] = 43.into();
    [before, after].map(|run| run.to_string())
}
