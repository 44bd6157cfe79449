//! The settings of a context: limits, caches, and access to peers.

use vramalloc_core::Code;

use crate::entry::driver;
use crate::ffi::{Handle, Out, PEER_ENABLED, PEER_NOT_ENABLED, code};

const UNSUPPORTED_LIMIT: Code = code(215);
const PEER_UNSUPPORTED: Code = code(217);

driver! {
    fn cuCtxGetLimit(call, value: Out<u64>, limit: u32) {
        let known = call.current_mut()?.limits.get(&limit).copied();
        value.set(known.ok_or(UNSUPPORTED_LIMIT)?)
    }

    fn cuCtxSetLimit(call, limit: u32, value: u64) {
        let limits = &mut call.current_mut()?.limits;
        *limits.get_mut(&limit).ok_or(UNSUPPORTED_LIMIT)? = value;
        Ok(())
    }

    fn cuCtxGetCacheConfig(call, config: Out<u32>) {
        config.set(call.current_mut()?.cache_config)
    }

    fn cuCtxSetCacheConfig(call, config: u32) {
        call.current_mut()?.cache_config = config;
        Ok(())
    }

    fn cuCtxGetSharedMemConfig(call, config: Out<u32>) {
        config.set(call.current_mut()?.shared_config)
    }

    fn cuCtxSetSharedMemConfig(call, config: u32) {
        call.current_mut()?.shared_config = config;
        Ok(())
    }

    fn cuCtxGetStreamPriorityRange(call, least: Out<i32>, greatest: Out<i32>) {
        call.context()?;
        least.maybe(0);
        greatest.maybe(-5);
        Ok(())
    }

    fn cuCtxResetPersistingL2Cache(call) {
        call.context().map(|_| ())
    }

    fn cuCtxEnablePeerAccess(call, peer: Handle, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        call.given(peer)?;
        let other = call.sim.contexts.get(peer).map(|c| c.device);
        let context = call.current_mut()?;
        if other == Some(context.device) {
            return Err(PEER_UNSUPPORTED);
        }
        if context.peers.insert(peer) { Ok(()) } else { Err(PEER_ENABLED) }
    }

    fn cuCtxDisablePeerAccess(call, peer: Handle) {
        call.given(peer)?;
        let known = call.current_mut()?.peers.remove(&peer);
        if known { Ok(()) } else { Err(PEER_NOT_ENABLED) }
    }
}
