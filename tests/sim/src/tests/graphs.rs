//! Graphs that allocate memory.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

use super::*;

const PAGE: u64 = 2 * MIB;

fn asked(device: i32, attribute: u32) -> u64 {
    made(|to| cuDeviceGetGraphMemAttribute(device, attribute, to))
}

/// Used, and reserved.
fn now() -> (u64, u64) {
    (asked(0, 0), asked(0, 2))
}

fn graph() -> Handle {
    made(|to| cuGraphCreate(to, 0))
}

fn instantiate(graph: Handle, flags: u64) -> Handle {
    made(|to| cuGraphInstantiateWithFlags(to, graph, flags))
}

fn params(size: u64) -> TakeParams {
    TakeParams {
        pool: PoolProps::of(0),
        accesses: 0,
        access_count: 0,
        size,
        address: 0,
    }
}

/// Adds a node behind these that allocates. Returns it and the address.
fn take(graph: Handle, after: &[Handle], size: u64) -> (Handle, u64) {
    let mut wanted = params(size);
    let node = made(|to| {
        let (list, count) = (In(after.as_ptr()), after.len() as u64);
        cuGraphAddMemAllocNode(to, graph, list, count, out(&mut wanted))
    });
    (node, wanted.address)
}

fn give(graph: Handle, after: &[Handle], address: u64) -> u32 {
    let (list, count) = (In(after.as_ptr()), after.len() as u64);
    cuGraphAddMemFreeNode(out(&mut 0), graph, list, count, address)
}

fn set(graph: Handle, after: Handle, to: u64, value: u32) -> Handle {
    let mut wanted = SetParams {
        to,
        pitch: 0,
        value,
        element: 4,
        width: 4,
        height: 1,
    };
    let place = out(&mut wanted);
    made(|node| cuGraphAddMemsetNode(node, graph, given(&after), 1, place, NULL))
}

#[test]
fn a_launch_reserves_and_a_trim_gives_back() {
    let program = Program::new();
    let (before, seen) = (info(), program.violations());
    // Of the tests that ran before.
    assert_eq!(cuDeviceSetGraphMemAttribute(0, 1, out(&mut 0)), 0);
    assert_eq!(cuDeviceSetGraphMemAttribute(0, 3, out(&mut 0)), 0);
    let g = graph();
    let (first, address) = take(g, &[], 3 * PAGE);
    let node = set(g, first, address, 5);
    assert_eq!(give(g, &[node], address), 0);
    let (_, again) = take(g, &[node], PAGE);
    assert_eq!(give(g, &[node], again), 0);
    let exec = instantiate(g, 0);
    assert_eq!(info(), before, "nothing is reserved yet");
    let s = stream(1);
    assert_eq!(cuGraphLaunch(exec, s), 0);
    assert_eq!(before - info(), 3 * PAGE, "one after the other");
    assert_eq!(now(), (3 * PAGE, 3 * PAGE));
    assert_eq!(cuGraphLaunch(exec, s), 0);
    assert_eq!(cuStreamSynchronize(s), 0);
    assert_eq!(now(), (3 * PAGE, 3 * PAGE), "kept");
    assert_eq!(bytes(c"graph"), 3 * PAGE);
    assert_eq!(cuDeviceGraphMemTrim(0), 0);
    assert_eq!(now(), (0, 0));
    assert_eq!(info(), before);
    assert_eq!((asked(0, 1), asked(0, 3)), (3 * PAGE, 3 * PAGE));
    assert_eq!(cuDeviceSetGraphMemAttribute(0, 3, out(&mut 0)), 0);
    assert_eq!(asked(0, 3), 0);
    assert_eq!(cuDeviceSetGraphMemAttribute(0, 1, out(&mut 0)), 0);
    assert_eq!(cuDeviceSetGraphMemAttribute(0, 1, out(&mut 7)), 1);
    assert_eq!(cuDeviceSetGraphMemAttribute(0, 2, out(&mut 0)), 1);
    assert_eq!(cuGraphUpload(exec, s), 0);
    assert_eq!(now(), (3 * PAGE, 3 * PAGE), "an upload reserves too");
    assert_eq!(cuGraphExecDestroy(exec), 0);
    assert_eq!(cuGraphDestroy(g), 0);
    assert_eq!(cuDeviceGraphMemTrim(0), 0);
    assert_eq!(info(), before);
    assert_eq!(program.violations(), seen);
}

#[test]
fn graphs_of_one_stream_share_memory_and_those_of_two_do_not() {
    let _program = Program::new();
    let make = |size| {
        let g = graph();
        let (node, address) = take(g, &[], size);
        assert_eq!(give(g, &[node], address), 0);
        instantiate(g, 0)
    };
    let (one, two) = (make(2 * PAGE), make(3 * PAGE));
    let (s, t) = (stream(1), stream(1));
    assert_eq!(cuGraphLaunch(one, s), 0);
    assert_eq!(cuGraphLaunch(two, s), 0);
    assert_eq!(now().1, 3 * PAGE);
    assert_eq!(cuGraphLaunch(one, t), 0);
    assert_eq!(now().1, 5 * PAGE);
    for exec in [one, two] {
        assert_eq!(cuGraphExecDestroy(exec), 0);
    }
    assert_eq!(now(), (5 * PAGE, 5 * PAGE));
    assert_eq!(cuDeviceGraphMemTrim(0), 0);
    assert_eq!(now(), (0, 0));
}

#[test]
fn what_outlives_a_launch_is_freed_by_the_program() {
    let program = Program::new();
    let seen = program.violations();
    let g = graph();
    let (node, address) = take(g, &[], PAGE);
    set(g, node, address, 7);
    assert_eq!(cuMemFree_v2(address), 1, "no memory yet");
    assert_eq!(program.violations().len(), seen.len() + 1);
    let exec = instantiate(g, 0);
    let s = stream(1);
    assert_eq!(cuGraphLaunch(exec, s), 0);
    assert_eq!(cuStreamSynchronize(s), 0);
    assert_eq!(read(address), 7);
    assert_eq!(cuGraphLaunch(exec, s), 1, "not freed yet");
    assert_eq!(cuDeviceGraphMemTrim(0), 0);
    assert_eq!(now(), (PAGE, PAGE));
    assert_eq!(cuMemFreeAsync(address, s), 0);
    assert_eq!(cuMemFreeAsync(address, s), 1);
    assert_eq!(cuGraphLaunch(exec, s), 0);
    assert_eq!(cuMemFree_v2(address), 0);
    // By another graph.
    let other = graph();
    assert_eq!(give(other, &[], address), 0);
    assert_eq!(give(g, &[], address), 1, "another graph does");
    let freeing = instantiate(other, 0);
    assert_eq!(cuGraphLaunch(freeing, s), 1, "it is free");
    assert_eq!(cuGraphLaunch(exec, s), 0);
    assert_eq!(cuGraphLaunch(freeing, s), 0);
    assert_eq!(cuGraphLaunch(exec, s), 0);
    // It outlives its graph, too.
    assert_eq!(cuGraphExecDestroy(exec), 0);
    assert_eq!(cuGraphDestroy(g), 0);
    assert_eq!(read(address), 7);
    assert_eq!(cuMemFreeAsync(address, s), 0);
    assert_eq!(cuStreamSynchronize(s), 0);
    assert_eq!(cuDeviceGraphMemTrim(0), 0);
    assert_eq!(now(), (0, 0));
    assert_eq!(program.violations().len(), seen.len() + 1);
}

#[test]
fn a_graph_may_free_what_its_last_launch_left() {
    let _program = Program::new();
    let g = graph();
    let (node, address) = take(g, &[], PAGE);
    set(g, node, address, 7);
    let exec = instantiate(g, 1);
    for _ in 0..3 {
        assert_eq!(cuGraphLaunch(exec, NULL), 0);
    }
    assert_eq!(cuCtxSynchronize(), 0);
    assert_eq!(now(), (PAGE, PAGE));
    assert_eq!(cuMemFree_v2(address), 0);
    assert_eq!(cuGraphExecDestroy(exec), 0);
}

#[test]
fn a_capture_makes_nodes_of_allocations() {
    let program = Program::new();
    let (before, seen) = (info(), program.violations());
    let s = stream(1);
    let outside = made(|to| cuMemAllocAsync(to, 512, s));
    assert_eq!(cuStreamBeginCapture_v2(s, 0), 0);
    let block = made(|to| cuMemAllocAsync(to, PAGE, s));
    assert_eq!(cuMemsetD32Async(block, 3, 16, s), 0);
    assert_eq!(program.fill(s, block, 4, 1, 5 * MS), 0);
    assert_eq!(cuMemFreeAsync(outside, s), 1, "no graph's");
    assert_eq!(cuMemFreeAsync(block, s), 0);
    let g = made(|to| cuStreamEndCapture(s, to));
    let mut nodes = [9; 8];
    let mut count = 8;
    assert_eq!(cuGraphGetNodes(g, out(&mut nodes[0]), out(&mut count)), 0);
    assert_eq!((count, nodes[4]), (4, 0));
    let mut found = params(0);
    assert_eq!(cuGraphMemAllocNodeGetParams(nodes[0], out(&mut found)), 0);
    assert_eq!((found.size, found.address), (PAGE, block));
    assert_eq!(cuGraphMemAllocNodeGetParams(nodes[1], out(&mut found)), 1);
    let freed: u64 = made(|to| cuGraphMemFreeNodeGetParams(nodes[3], to));
    assert_eq!(freed, block);
    let exec = instantiate(g, 0);
    assert_eq!(cuGraphInstantiateWithFlags(out(&mut 0), g, 0), 1, "once");
    assert_eq!(before - info(), 32 * MIB, "the pool's");
    assert_eq!(cuGraphLaunch(exec, s), 0);
    assert_eq!(cuGraphLaunch(exec, s), 0);
    assert_eq!(before - info(), 32 * MIB + PAGE);
    assert_eq!(cuMemFreeAsync(outside, s), 0);
    assert_eq!(cuStreamSynchronize(s), 0);
    assert_eq!(program.violations(), seen);
    // Used outside of the graph, it is no memory.
    assert_eq!(program.fill(s, block, 4, 1, 1), 0);
    assert_eq!(program.violations().len(), seen.len() + 1);
    assert_eq!(cuStreamSynchronize(s), 0);
    assert_eq!(cuGraphExecDestroy(exec), 0);
    assert_eq!(cuGraphDestroy(g), 0);
    assert_eq!(cuDeviceGraphMemTrim(0), 0);
    assert_eq!(info(), before);
}

#[test]
fn a_launch_without_memory_does_nothing() {
    let _program = Program::new();
    let word = alloc(512);
    assert_eq!(cuMemsetD32_v2(word, 1, 1), 0);
    let g = graph();
    let (first, _) = take(g, &[], 4 * PAGE);
    set(g, first, word, 2);
    let exec = instantiate(g, 0);
    let rest = alloc(info() - 3 * PAGE);
    assert_eq!(cuGraphLaunch(exec, NULL), 2);
    assert_eq!(cuGraphUpload(exec, NULL), 0, "what outlives it comes later");
    assert_eq!(read(word), 1);
    assert_eq!(now(), (0, 0));
    assert_eq!(cuMemFree_v2(rest), 0);
    assert_eq!(cuGraphLaunch(exec, NULL), 0);
    assert_eq!(read(word), 2);
    assert_eq!(cuGraphExecDestroy(exec), 0);
}

#[test]
fn nodes_are_added_by_their_type_too() {
    #[repr(C)]
    struct Any<T> {
        head: NodeParams,
        body: T,
        rest: [u64; 29],
    }
    fn any<T>(kind: u32, body: T) -> Any<T> {
        let reserved = [0; 3];
        let head = NodeParams { kind, reserved };
        let rest = [0; 29];
        Any { head, body, rest }
    }
    let _program = Program::new();
    let g = graph();
    let none_before = || In(std::ptr::null());
    let mut taking = any(10, params(PAGE));
    let place = out(&mut taking).cast();
    let first: Handle = made(|to| cuGraphAddNode(to, g, none_before(), 0, place));
    let address = taking.body.address;
    let mut giving = any(11, address);
    let place = out(&mut giving).cast();
    let edges = In(std::ptr::null());
    let second: Handle = made(|to| cuGraphAddNode_v2(to, g, given(&first), edges, 1, place));
    let freed: u64 = made(|to| cuGraphMemFreeNodeGetParams(second, to));
    assert_eq!(freed, address);
    let mut kernel = any(0, 0_u64);
    let place = out(&mut kernel).cast();
    assert_eq!(cuGraphAddNode(out(&mut 0), g, none_before(), 0, place), 801);
    assert_eq!(give(g, &[], address), 1, "twice");
    assert_eq!(give(g, &[], 0x1000), 1);
    assert_eq!(give(g, &[0xdead], address), 1);
    let mut wanted = params(0);
    let place = out(&mut wanted);
    assert_eq!(
        cuGraphAddMemAllocNode(out(&mut 0), g, none_before(), 0, place),
        1
    );
    assert_eq!(cuGraphDestroy(g), 0);
}
