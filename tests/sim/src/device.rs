//! Devices and their properties: something like an H200.

use vramalloc_core::Code;

use crate::entry::{Call, driver};
use crate::ffi::{INVALID_DEVICE, Out, Text, code, put_text};

/// Attributes and values; all others are 0.
const ATTRIBUTES: &[(i32, i32)] = &[
    (1, 1024),
    (2, 1024),
    (3, 1024),
    (4, 64),
    (5, i32::MAX),
    (6, 65_535),
    (7, 65_535),
    (8, 49_152),
    (9, 65_536),
    (10, 32),
    (11, i32::MAX),
    (12, 65_536),
    (13, 1_980_000),
    (14, 512),
    (15, 1),
    (16, 132),
    (19, 1),
    (31, 1),
    (32, 1),
    (36, 3_201_000),
    (37, 6144),
    (38, 62_914_560),
    (39, 2048),
    (40, 3),
    (41, 1),
    (51, 32),
    (78, 1),
    (79, 1),
    (80, 1),
    (81, 233_472),
    (82, 65_536),
    (83, 1),
    (86, 2),
    (88, 1),
    (89, 1),
    (90, 1),
    (91, 1),
    (95, 1),
    (97, 232_448),
    (99, 1),
    (102, 1),
    (103, 1),
    (106, 32),
    (108, 41_943_040),
    (109, 134_213_632),
    (110, 1),
    (111, 1024),
    (115, 1),
    (119, 1),
    (120, 1),
    (141, 1),
    (145, 1),
    (149, 1),
];

/// The attributes that have names today.
const KNOWN: std::ops::RangeInclusive<i32> = 1..=150;

const PCI_BUS: i32 = 33;
const PCI_DEVICE: i32 = 34;
const MAJOR: i32 = 75;
const MINOR: i32 = 76;
const BOARD_GROUP: i32 = 85;
/// Virtual memory, the kinds of handles to it, and whether other hardware may use it.
const OF_VIRTUAL_MEMORY: [i32; 3] = [102, 103, 110];

impl Call<'_> {
    /// The device with this number.
    pub(crate) fn device(&self, ordinal: i32) -> Result<u32, Code> {
        let device = u32::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
        if device < self.sim.environment.devices {
            return Ok(device);
        }
        Err(INVALID_DEVICE)
    }
}

fn uuid(device: u32) -> [u8; 16] {
    let mut uuid = *b"simulated-gp\0\0\0\0";
    uuid[12..].copy_from_slice(&device.to_be_bytes());
    uuid
}

fn bus_id(device: u32) -> String {
    format!("0000:{:02X}:00.0", device + 1)
}

driver! {
    fn cuDeviceGet(call, device: Out<i32>, ordinal: i32) {
        call.device(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetCount(call, count: Out<i32>) {
        count.set(i32::try_from(call.sim.environment.devices).unwrap_or(i32::MAX))
    }

    fn cuDeviceGetName(call, name: Out<u8>, length: i32, device: i32) {
        call.device(device)?;
        put_text(&name, length, "Simulated H200")
    }

    fn cuDeviceGetUuid(call, to: Out<[u8; 16]>, device: i32) {
        to.set(uuid(call.device(device)?))
    }

    fn cuDeviceGetUuid_v2(call, to: Out<[u8; 16]>, device: i32) {
        to.set(uuid(call.device(device)?))
    }

    fn cuDeviceTotalMem_v2(call, bytes: Out<u64>, device: i32) {
        call.device(device)?;
        bytes.set(call.sim.environment.memory.get())
    }

    fn cuDeviceComputeCapability(call, major: Out<i32>, minor: Out<i32>, device: i32) {
        call.device(device)?;
        major.set(call.sim.environment.capability.0)?;
        minor.set(call.sim.environment.capability.1)
    }

    fn cuDeviceGetAttribute(call, value: Out<i32>, attribute: i32, device: i32) {
        let device = call.device(device)?;
        if !KNOWN.contains(&attribute) {
            return Err(Code::INVALID_VALUE);
        }
        value.set(match attribute {
            PCI_BUS => i32::try_from(device).unwrap_or(0) + 1,
            PCI_DEVICE => 0,
            MAJOR => call.sim.environment.capability.0,
            MINOR => call.sim.environment.capability.1,
            BOARD_GROUP => i32::try_from(device).unwrap_or(0),
            a if call.sim.environment.no_vmm && OF_VIRTUAL_MEMORY.contains(&a) => 0,
            _ => ATTRIBUTES
                .iter()
                .find(|(a, _)| *a == attribute)
                .map_or(0, |(_, v)| *v),
        })
    }

    fn cuDeviceGetPCIBusId(call, to: Out<u8>, length: i32, device: i32) {
        let device = call.device(device)?;
        put_text(&to, length, &bus_id(device))
    }

    fn cuDeviceGetByPCIBusId(call, device: Out<i32>, id: Text) {
        let id = id.get()?.to_ascii_uppercase();
        let all = 0..call.sim.environment.devices;
        let found = all.into_iter().find(|&d| bus_id(d).ends_with(&id));
        device.set(found.and_then(|d| i32::try_from(d).ok()).ok_or(INVALID_DEVICE)?)
    }

    fn cuDeviceCanAccessPeer(call, can: Out<i32>, device: i32, peer: i32) {
        let different = call.device(device)? != call.device(peer)?;
        can.set(i32::from(different))
    }

    fn cuDeviceGetP2PAttribute(call, value: Out<i32>, attribute: u32, from: i32, to: i32) {
        if call.device(from)? == call.device(to)? {
            return Err(INVALID_DEVICE);
        }
        if !(1..=6).contains(&attribute) {
            return Err(Code::INVALID_VALUE);
        }
        value.set(i32::from(attribute != 1))
    }

    fn cuProfilerStart(call) {
        call.context().map(|_| ())
    }

    fn cuProfilerStop(call) {
        call.context().map(|_| ())
    }

    fn cuFlushGPUDirectRDMAWrites(call, _target: u32, _scope: u32) {
        call.context().map(|_| ())
    }

    fn cuDeviceGetLuid(_, _luid: Out<u8>, _mask: Out<u32>, _device: i32) {
        Err(code(801))
    }
}
