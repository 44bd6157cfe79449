//! Lanes of captures.

use vramalloc_core::config::StrategyKind;
use vramalloc_core::lanes::Capture;
use vramalloc_core::{Bytes, FreeError};

use super::{SIZE, Streams, told};
use crate::rig::MS;

#[test]
fn memory_of_a_capture_serves_the_capture_alone() {
    let streams = Streams::new(2, Bytes::gib(1));
    let (lane, before) = streams.get(0, SIZE, MS);
    streams.free(&lane, before);
    streams.gpu.begin_capture(streams.streams[0]);
    let lane = streams.lane(0, Some(told(1)));
    let first = streams.allocate(&lane, SIZE);
    assert_ne!(first, before);
    streams.free(&lane, first);
    // The same stream, in the same capture.
    let again = streams.allocate(&lane, SIZE);
    assert_eq!(first, again);
    // Another stream used this one: it is nobody's from here on.
    streams.record(&lane, again, 1).unwrap();
    streams.free(&lane, again);
    let next = streams.allocate(&lane, SIZE);
    assert_ne!(next, again);
    assert!(streams.gpu.end_capture(streams.streams[0]));
    streams.free(&lane, next);

    // The graph may be launched from now on: no address of it comes again,
    // whoever trims.
    streams.lanes.trim();
    for at in [0, 1] {
        let (_, other) = streams.get(at, SIZE, MS);
        assert!(![first, next].contains(&other));
    }
    assert_ne!(streams.lane(0, Some(told(2))).id(), lane.id());
    assert!(!lane.is_empty());

    streams.lanes.release_captures(|capture| capture == 2);
    assert!(!lane.is_empty());
    assert!(
        !streams
            .lanes
            .release_captures(|capture| capture == 1)
            .is_zero()
    );
    assert!(lane.is_empty());
    streams.is_clean();
}

#[test]
fn what_is_freed_in_a_capture_of_unknown_uses_serves_nobody() {
    let streams = Streams::new(1, Bytes::gib(1));
    streams.gpu.begin_capture(streams.streams[0]);
    let untold = Capture {
        told: false,
        ..told(1)
    };
    let lane = streams.lane(0, Some(untold));
    let first = streams.allocate(&lane, SIZE);
    streams.free(&lane, first);
    let next = streams.allocate(&lane, SIZE);
    assert_ne!(first, next);
    let twice = streams.lanes.free(&lane, first);
    assert_eq!(twice, Err(FreeError::NotLive));
    assert!(streams.gpu.end_capture(streams.streams[0]));
    streams.free(&lane, next);
    streams.lanes.release_captures(|_| true);
    assert!(lane.is_empty());
    streams.is_clean();
}

#[test]
fn a_capture_that_runs_short_keeps_what_its_graph_uses() {
    let streams = Streams::new(1, Bytes::mib(64));
    let lane = streams.lane(0, Some(told(7)));
    let first = streams.allocate(&lane, Bytes::mib(40));
    streams.free(&lane, first);
    assert!(lane.allocate(Bytes::mib(50)).is_err());
    assert_eq!(streams.gpu.used(0), Bytes::mib(40));
    assert_eq!(streams.allocate(&lane, Bytes::mib(40)), first);
    streams.free(&lane, first);
    let released = streams.lanes.release_captures(|number| number == 7);
    assert_eq!(released, Bytes::mib(40));
    // The next stream that gets this arena may give it back.
    let (lane, block) = streams.get(0, Bytes::mib(40), MS);
    streams.free(&lane, block);
    assert_eq!(streams.lanes.trim(), Bytes::mib(40));
    streams.is_clean();
}

#[test]
fn what_a_capture_has_of_the_driver_itself_is_kept_too() {
    let mut streams = Streams::new(1, Bytes::mib(64));
    streams.strategy = StrategyKind::Passthrough;
    let lane = streams.lane(0, Some(told(7)));
    let first = streams.allocate(&lane, SIZE);
    streams.free(&lane, first);
    assert_eq!(streams.lanes.free(&lane, first), Err(FreeError::NotLive));
    assert_ne!(streams.allocate(&lane, SIZE), first);
    assert!(streams.gpu.used(0) >= SIZE.saturating_add(SIZE));
    streams.lanes.release_captures(|number| number == 7);
    assert!(streams.gpu.used(0) < SIZE.saturating_add(SIZE));
    streams.is_clean();
}

/// A program that captures again and again, and releases each capture.
#[test]
fn one_capture_after_the_other_takes_no_lane_more() {
    let streams = Streams::new(1, Bytes::gib(1));
    for number in 1..20 {
        streams.gpu.begin_capture(streams.streams[0]);
        let lane = streams.lane(0, Some(told(number)));
        let block = streams.allocate(&lane, SIZE);
        streams.free(&lane, block);
        assert!(streams.gpu.end_capture(streams.streams[0]));
        streams.lanes.release_captures(|gone| gone == number);
    }
    assert_eq!(streams.made.get(), 1);
    streams.is_clean();
}

/// The same where a block outlives each capture for a moment.
#[test]
fn captures_that_a_block_outlives_take_two_lanes() {
    let streams = Streams::new(1, Bytes::gib(1));
    for number in 1..20 {
        streams.gpu.begin_capture(streams.streams[0]);
        let lane = streams.lane(0, Some(told(number)));
        let block = streams.allocate(&lane, SIZE);
        assert!(streams.gpu.end_capture(streams.streams[0]));
        streams.lanes.release_captures(|gone| gone == number);
        streams.free(&lane, block);
    }
    assert_eq!(streams.made.get(), 2);
    streams.lanes.release_captures(|_| true);
    assert!(streams.gpu.used(0).is_zero());
    streams.is_clean();
}

/// A tensor may outlive the graph that it was captured in, and its stream goes
/// on using it.
#[test]
fn what_outlives_its_graph_is_its_streams_still() {
    let streams = Streams::new(2, Bytes::gib(1));
    let lane = streams.lane(0, Some(told(7)));
    let block = streams.allocate(&lane, SIZE);
    streams.lanes.release_captures(|number| number == 7);
    streams.launch(0, block, SIZE, 50 * MS);
    streams.free(&lane, block);
    let (_, other) = streams.get(1, SIZE, MS);
    assert_ne!(other, block);
    streams.is_clean();
}
