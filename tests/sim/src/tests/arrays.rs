//! Arrays and mipmaps.

#![allow(clippy::wildcard_imports, reason = "a program sees every function")]

use super::*;

const KIB: u64 = 1 << 10;
const PAGE: u64 = 2 * MIB;
const U8: u32 = 0x01;
const FLOAT: u32 = 0x20;

fn shape(width: u64, height: u64, depth: u64, flags: u32) -> Shape {
    Shape {
        width,
        height,
        depth,
        format: FLOAT,
        channels: 2,
        flags,
    }
}

fn array(shape: Shape) -> Handle {
    made(|to| cuArray3DCreate_v2(to, given(&shape)))
}

#[test]
fn small_arrays_share_a_page_in_units_of_64_kib() {
    let _program = Program::new();
    let before = info();
    let flat = Shape2D {
        width: 100,
        height: 0,
        format: U8,
        channels: 1,
    };
    let one: Handle = made(|to| cuArrayCreate_v2(to, given(&flat)));
    assert_eq!(before - info(), PAGE);
    let two = array(shape(64, 64, 3, 0));
    // 64 KiB are taken, and 128 KiB for 8 bytes 12288 times.
    let fit = (PAGE / KIB - 64 - 128) / 64;
    let all: Vec<Handle> = (0..fit).map(|_| array(shape(32, 64, 0, 0))).collect();
    assert_eq!(before - info(), PAGE);
    let more = array(shape(32, 64, 0, 0));
    assert_eq!(before - info(), 2 * PAGE);
    let large = array(shape(512, 257, 0, 0));
    assert_eq!(before - info(), 3 * PAGE, "more than half a page");
    assert_eq!(bytes(c"array"), 3 * PAGE);
    for array in all.into_iter().chain([more, large]) {
        assert_eq!(cuArrayDestroy(array), 0);
    }
    assert_eq!(before - info(), PAGE);
    let mut found = flat;
    assert_eq!(cuArrayGetDescriptor_v2(out(&mut found), two), 0);
    assert_eq!((found.width, found.format), (64, FLOAT));
    let mut found = shape(0, 0, 0, 0);
    assert_eq!(cuArray3DGetDescriptor_v2(out(&mut found), two), 0);
    assert_eq!(found, shape(64, 64, 3, 0));
    assert_eq!(cuArrayDestroy(one), 0);
    assert_eq!(cuArrayDestroy(one), 400);
    assert_eq!(cuArrayDestroy(two), 0);
    assert_eq!(info(), before);
}

#[test]
fn a_mipmap_uses_a_third_more_than_its_first_level() {
    let _program = Program::new();
    let before = info();
    let base = shape(512, 512, 0, 0);
    let mipmap: Handle = made(|to| cuMipmappedArrayCreate(to, given(&base), 100));
    let first = 512 * 512 * 8;
    assert_eq!(
        before - info(),
        (first * 4_u64).div_ceil(3).next_multiple_of(PAGE)
    );
    let level = |n| made::<Handle>(|to| cuMipmappedArrayGetLevel(to, mipmap, n));
    let mut found = base;
    assert_eq!(cuArray3DGetDescriptor_v2(out(&mut found), level(3)), 0);
    assert_eq!((found.width, found.height), (64, 64));
    assert_eq!(level(9), level(9));
    assert_eq!(cuMipmappedArrayGetLevel(out(&mut 0), mipmap, 10), 1);
    assert_eq!(cuArrayDestroy(level(0)), 400, "not by itself");
    let kept = level(0);
    assert_eq!(cuMipmappedArrayDestroy(mipmap), 0);
    assert_eq!(cuArray3DGetDescriptor_v2(out(&mut found), kept), 400);
    assert_eq!(info(), before);
}

#[test]
fn arrays_to_which_memory_comes_later_use_none() {
    let _program = Program::new();
    let before = info();
    let ask = |array, device| {
        let mut needs = Requirements::default();
        let code = cuArrayGetMemoryRequirements(out(&mut needs), array, device);
        (code, needs.size, needs.alignment)
    };
    let deferred = array(shape(64, 64, 3, 0x80));
    let plain = array(shape(64, 64, 3, 0));
    assert_eq!(ask(deferred, 0), (0, 128 * KIB, 64 * KIB));
    assert_eq!(ask(deferred, 9).0, 101);
    assert_eq!(ask(plain, 0).0, 1);
    assert_eq!(cuArrayDestroy(plain), 0);
    assert_eq!(info(), before);
    let mut byte = 0_u8;
    let to = (&raw mut byte) as u64;
    assert_eq!(cuMemcpyAtoH_v2(to, deferred, 0, 1), 400);
    assert_eq!(cuArrayDestroy(deferred), 0);
}

#[test]
fn copies_reach_the_rows_of_arrays() {
    let _program = Program::new();
    let array = array(shape(4, 4, 2, 0));
    let from: Vec<u8> = (0..=255).collect();
    let start = from.as_ptr() as u64;
    assert_eq!(cuMemcpyHtoA_v2(array, 0, start, 256), 0);
    assert_eq!(cuMemcpyHtoA_v2(array, 1, start, 256), 1);
    let mut byte = [0_u8; 2];
    let to = (&raw mut byte) as u64;
    assert_eq!(cuMemcpyAtoH_v2(to, array, 70, 2), 0);
    assert_eq!(byte, [70, 71]);
    // Two rows of three bytes from x 1, y 1 of slice 1.
    let mut rows = vec![0_u8; 64];
    let words = |kind: u64, x, y, z, pitch, height| [x, y, z, 0, kind, 0, 0, 0, 0, pitch, height];
    let mut source = words(3, 1, 1, 1, 0, 0);
    source[7] = array;
    let mut target = words(1, 0, 0, 0, 16, 2);
    target[5] = rows.as_mut_ptr() as u64;
    let mut copy: Vec<u64> = source.into_iter().chain(target).collect();
    copy.extend([3, 2, 1]);
    assert_eq!(cuMemcpy3D_v2(In(copy.as_ptr().cast())), 0);
    assert_eq!(rows[..3], [161, 162, 163]);
    assert_eq!(rows[16..19], [193, 194, 195]);
    assert_eq!(cuArrayDestroy(array), 0);
}

#[test]
fn bad_shapes_get_codes() {
    let _program = Program::new();
    let create = |s: Shape| cuArray3DCreate_v2(out(&mut 0), given(&s));
    assert_eq!(create(shape(0, 1, 1, 0)), 1);
    assert_eq!(create(shape(1, 0, 1, 0)), 1, "depth without height");
    assert_eq!(create(shape(8, 8, 5, 4)), 1, "no cube");
    assert_eq!(create(shape(8, 8, 0, 1)), 1, "no layers");
    assert_eq!(create(shape(131_073, 1, 0, 0)), 1);
    assert_eq!(create(shape(1, 65_537, 0, 0)), 1);
    assert_eq!(create(shape(131_072, 65_536, 0, 0)), 2);
    assert_eq!(create(shape(1 << 40, 1 << 20, 1 << 20, 0)), 2);
    assert_eq!(create(shape(1 << 20, 1 << 20, 1, 0)), 2);
    let mut other = shape(8, 8, 0, 0);
    other.channels = 3;
    assert_eq!(create(other), 1);
    other = shape(8, 8, 0, 0);
    other.format = 0x77;
    assert_eq!(create(other), 1);
    let other = made(|to| cuCtxCreate_v2(to, 0, 0));
    let before = info();
    array(shape(64, 64, 0, 0));
    assert!(info() < before);
    assert_eq!(cuCtxDestroy_v2(other), 0);
    assert_eq!(info(), before);
}
