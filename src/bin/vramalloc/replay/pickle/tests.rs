use super::*;

/// What Python writes for `{"device_traces": [[], [event]], "segments": []}`, with a
/// call stack that two objects share.
fn pickled(extra: &[u8]) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).unwrap();
        [&[0x8c, length], text.as_bytes(), &[0x94]].concat()
    };
    let mut bytes = vec![0x80, 4, b'}', 0x94, b'('];
    bytes.extend(text("device_traces"));
    // The first device has an empty trace.
    bytes.extend([b']', 0x94, b'(', b']', 0x94, b']', 0x94, b'}', 0x94, b'(']);
    bytes.extend(text("action"));
    bytes.extend(text("alloc"));
    bytes.extend(text("addr"));
    bytes.extend([0x8a, 6, 0, 0, 0, 0, 0, 0x7f]);
    bytes.extend(text("size"));
    bytes.extend([b'J', 0, 0, 16, 0]);
    bytes.extend(text("time_us"));
    bytes.extend([b'M', 7, 1]);
    bytes.extend(text("frames"));
    bytes.extend([b']', 0x94, b'}', 0x94, b'(']);
    bytes.extend(text("filename"));
    bytes.extend(text(&"x".repeat(200)));
    bytes.extend(extra);
    bytes.extend([b'u', b'a', b'u', b'a', b'e']);
    bytes.extend(text("segments"));
    bytes.extend([b']', 0x94, b'u', b'.']);
    bytes
}

#[test]
fn events_are_read_in_the_traces_of_their_devices() {
    let event = TraceEvent {
        action: TraceAction::Alloc,
        address: 0x7f00_0000_0000,
        size: 1 << 20,
        time_us: 263,
    };
    let expected = TorchSnapshot {
        traces: vec![Vec::new(), vec![event]],
        live: Vec::new(),
    };
    assert_eq!(read(&*pickled(&[])), Ok(expected));
}

#[test]
fn nothing_is_run_and_nothing_is_read_beyond_the_end() {
    // GLOBAL, STACK_GLOBAL, REDUCE, BUILD, INST, EXT1.
    for opcode in [b'c', 0x93, b'R', b'b', b'i', 0x82] {
        let error = read(&*pickled(&[opcode])).unwrap_err();
        assert!(error.contains("it is not run"), "{error}");
    }
    let whole = pickled(&[]);
    for length in 0..whole.len() {
        assert!(read(&whole[..length]).is_err(), "{length} bytes");
    }
    let deep = [&[0x80, 4][..], &[b'('; 1000]].concat();
    assert!(read(&*deep).is_err());
    // A length that is not there takes no memory.
    let long = [
        0x80, 4, 0x8d, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f,
    ];
    assert!(read(&long[..]).is_err());
}

/// `{"device_traces": [trace, trace, ...], "segments": []}`, where all are the same list of
/// so many events.
fn aliased(events: usize, traces: usize) -> Vec<u8> {
    let text = |text: &str| {
        let length = u8::try_from(text.len()).unwrap();
        [&[0x8c, length], text.as_bytes()].concat()
    };
    let event = [&[b'}', b'('][..], &text("action"), &text("alloc"), b"u"].concat();
    let mut bytes = vec![0x80, 4, b'}', b'('];
    bytes.extend(text("device_traces"));
    bytes.extend([b']', b'(', b']', 0x94, b'(']);
    bytes.extend(event.repeat(events));
    bytes.push(b'e');
    bytes.extend([b'h', 0].repeat(traces - 1));
    bytes.push(b'e');
    bytes.extend(text("segments"));
    bytes.extend([b']', b'u', b'.']);
    bytes
}

#[test]
fn what_is_named_many_times_is_not_held_many_times() {
    assert_eq!(read(&*aliased(10, 1)).unwrap().traces[0].len(), 10);
    let error = read(&*aliased(1000, 1000)).unwrap_err();
    assert!(error.contains("many times"), "{error}");
}

#[test]
fn a_file_of_empty_lists_takes_no_more_than_a_snapshot() {
    for lists in [&b"]"[..], b"]a"] {
        let bytes = [&[0x80, 4, b']'][..], &lists.repeat(4 << 20)].concat();
        let error = read(&*bytes).unwrap_err();
        assert!(error.contains("more than a snapshot"), "{error}");
    }
}
