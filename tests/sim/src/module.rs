//! Modules, libraries and linkers, and the kernels in them.
//!
//! Owns their handles. Invariant: a library is a module that belongs to no
//! context, and a function of the driver has the same handle as the kernel that
//! it is made from. Cost: linear in a module's kernels.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};

use vramalloc_core::{Bytes, Code};

use crate::entry::{Call, driver};
use crate::ffi::{Done, Handle, INVALID_HANDLE, In, NOT_FOUND, Out, Text, bytes_at, code};
use crate::ptx::{Entry, Image};
use crate::state::{Kernel, Kind, Linker, Module};

const FILE_NOT_FOUND: Code = code(301);

/// The reference to every texture of a binary image.
const TEXTURE: Handle = 0x5170_0000_0000;

/// The attributes of a kernel that are not 0, by number.
const ATTRIBUTES: &[(i32, i32)] = &[(0, 1024), (4, 32), (5, 90), (6, 90), (8, 49_152), (9, -1)];

impl Call<'_> {
    fn load(&mut self, to: &Out<Handle>, image: Image, context: Option<Handle>) -> Done {
        let module = Module {
            context,
            image,
            kernels: BTreeMap::new(),
            globals: BTreeMap::new(),
        };
        to.set(self.sim.modules.insert(module))
    }

    pub(crate) fn load_module(&mut self, to: &Out<Handle>, image: *const c_void) -> Done {
        to.required()?;
        let context = self.context()?;
        self.unsafe_in_capture()?;
        self.load(to, Image::at(image)?, Some(context))
    }

    fn unload(&mut self, module: Handle) -> Done {
        let gone = self.sim.modules.remove(module).ok_or(INVALID_HANDLE)?;
        self.sim.kernels.remove_if(|k| k.module == module);
        for address in gone.globals.into_values() {
            self.sim.release(address);
        }
        Ok(())
    }

    fn find_kernel(&mut self, module: Handle, name: &str) -> Result<Handle, Code> {
        let found = self.sim.modules.get(module).ok_or(INVALID_HANDLE)?;
        if let Some(&known) = found.kernels.get(name) {
            return Ok(known);
        }
        let declared = found.image.entries.iter().find(|e| e.name == name).cloned();
        let entry = match declared {
            Some(entry) => entry,
            None if found.image.opaque => Entry {
                name: name.to_owned(),
                parameters: Vec::new(),
            },
            None => return Err(NOT_FOUND),
        };
        let kernel = Kernel {
            context: found.context,
            module,
            entry,
            name: CString::new(name).map_err(|_| NOT_FOUND)?,
            attributes: BTreeMap::new(),
        };
        let handle = self.sim.kernels.insert(kernel);
        if let Some(found) = self.sim.modules.get_mut(module) {
            found.kernels.insert(name.to_owned(), handle);
        }
        Ok(handle)
    }

    fn find_global(
        &mut self,
        to: &Out<u64>,
        size: &Out<u64>,
        module: Handle,
        name: String,
    ) -> Done {
        let context = self.context()?;
        let found = self.sim.modules.get(module).ok_or(INVALID_HANDLE)?;
        let global = found.image.globals.iter().find(|(n, _)| *n == name);
        let length = global.map(|(_, l)| *l).ok_or(NOT_FOUND)?;
        let key = (name, context);
        let address = match found.globals.get(&key) {
            Some(&known) => known,
            None => {
                let owner = self.alive(context)?;
                let room = Bytes::new(length.max(1));
                let fresh = self.sim.model.allocate(owner, room)?.get();
                self.sim.kinds.insert(fresh, Kind::Global);
                if let Some(found) = self.sim.modules.get_mut(module) {
                    found.globals.insert(key, fresh);
                }
                fresh
            }
        };
        to.maybe(address);
        size.maybe(length);
        Ok(())
    }

    fn names(&self, module: Handle) -> Result<Vec<String>, Code> {
        let found = self.sim.modules.get(module).ok_or(INVALID_HANDLE)?;
        Ok((found.image.entries.iter())
            .map(|e| e.name.clone())
            .collect())
    }

    fn count(&self, to: &Out<u32>, module: Handle) -> Done {
        let names = self.names(module)?;
        to.set(u32::try_from(names.len()).unwrap_or(u32::MAX))
    }

    fn enumerate(&mut self, to: &Out<Handle>, room: u32, module: Handle) -> Done {
        to.required()?;
        let names = self.names(module)?;
        for (i, name) in names.iter().take(room as usize).enumerate() {
            to.set_at(i, self.find_kernel(module, name)?);
        }
        Ok(())
    }

    pub(crate) fn kernel(&self, handle: Handle) -> Result<&Kernel, Code> {
        self.sim.kernels.get(handle).ok_or(INVALID_HANDLE)
    }

    fn attribute(&self, to: &Out<i32>, attribute: i32, kernel: Handle) -> Done {
        let kernel = self.kernel(kernel)?;
        if !(0..=20).contains(&attribute) {
            return Err(Code::INVALID_VALUE);
        }
        let set = kernel.attributes.get(&attribute).copied();
        let usual = ATTRIBUTES.iter().find(|(a, _)| *a == attribute);
        to.set(set.or(usual.map(|(_, v)| *v)).unwrap_or(0))
    }

    fn set_attribute(&mut self, attribute: i32, value: i32, kernel: Handle) -> Done {
        let kernel = self.sim.kernels.get_mut(kernel).ok_or(INVALID_HANDLE)?;
        kernel.attributes.insert(attribute, value);
        Ok(())
    }

    fn parameter(&self, kernel: Handle, index: u64, offset: &Out<u64>, size: &Out<u64>) -> Done {
        offset.required()?;
        let parameters = &self.kernel(kernel)?.entry.parameters;
        let index = usize::try_from(index).map_err(|_| Code::INVALID_VALUE)?;
        let &(at, length) = parameters.get(index).ok_or(Code::INVALID_VALUE)?;
        offset.maybe(at);
        size.maybe(length);
        Ok(())
    }

    fn add(&mut self, linker: Handle, kind: u32, data: Vec<u8>) -> Done {
        const PTX: u32 = 1;
        let linker = self.sim.linkers.get_mut(linker).ok_or(INVALID_HANDLE)?;
        if kind == PTX || linker.image.is_empty() {
            linker.image = data;
            linker.image.push(0);
        }
        Ok(())
    }
}

fn read_file(path: &Text) -> Result<Vec<u8>, Code> {
    let mut bytes = std::fs::read(path.get()?).map_err(|_| FILE_NOT_FOUND)?;
    bytes.push(0);
    Ok(bytes)
}

driver! {
    fn cuModuleLoadData(call, to: Out<Handle>, image: *const c_void) {
        call.load_module(&to, image)
    }

    fn cuModuleLoadDataEx(
        call, to: Out<Handle>, image: *const c_void, _count: u32, _options: In<u32>,
        _values: In<u64>,
    ) {
        call.load_module(&to, image)
    }

    fn cuModuleLoadFatBinary(call, to: Out<Handle>, image: *const c_void) {
        call.load_module(&to, image)
    }

    fn cuModuleLoad(call, to: Out<Handle>, path: Text) {
        let image = read_file(&path)?;
        call.load_module(&to, image.as_ptr().cast())
    }

    fn cuModuleUnload(call, module: Handle) {
        call.unload(module)
    }

    fn cuModuleGetLoadingMode(_, mode: Out<u32>) {
        mode.set(2)
    }

    fn cuModuleGetFunction(call, to: Out<Handle>, module: Handle, name: Text) {
        to.required()?;
        to.set(call.find_kernel(module, &name.get()?)?)
    }

    fn cuModuleGetFunctionCount(call, to: Out<u32>, module: Handle) {
        call.count(&to, module)
    }

    fn cuModuleEnumerateFunctions(call, to: Out<Handle>, room: u32, module: Handle) {
        call.enumerate(&to, room, module)
    }

    fn cuModuleGetGlobal_v2(
        call, to: Out<u64>, size: Out<u64>, module: Handle, name: Text,
    ) {
        let name = name.get()?;
        call.find_global(&to, &size, module, name)
    }

    fn cuModuleGetTexRef(call, to: Out<Handle>, module: Handle, name: Text) {
        to.required()?;
        let found = call.sim.modules.get(module).ok_or(INVALID_HANDLE)?;
        name.get()?;
        // All texture references are alike: nothing can be bound to them.
        if found.image.opaque { to.set(TEXTURE) } else { Err(NOT_FOUND) }
    }

    fn cuLibraryLoadData(
        call, to: Out<Handle>, image: *const c_void, _options: In<u32>, _values: In<u64>,
        _count: u32, _more: In<u32>, _more_values: In<u64>, _more_count: u32,
    ) {
        to.required()?;
        let image = Image::at(image)?;
        call.load(&to, image, None)
    }

    fn cuLibraryLoadFromFile(
        call, to: Out<Handle>, path: Text, _options: In<u32>, _values: In<u64>, _count: u32,
        _more: In<u32>, _more_values: In<u64>, _more_count: u32,
    ) {
        to.required()?;
        let bytes = read_file(&path)?;
        let image = Image::at(bytes.as_ptr().cast())?;
        call.load(&to, image, None)
    }

    fn cuLibraryUnload(call, library: Handle) {
        call.unload(library)
    }

    fn cuLibraryGetKernel(call, to: Out<Handle>, library: Handle, name: Text) {
        to.required()?;
        to.set(call.find_kernel(library, &name.get()?)?)
    }

    fn cuLibraryGetKernelCount(call, to: Out<u32>, library: Handle) {
        call.count(&to, library)
    }

    fn cuLibraryEnumerateKernels(call, to: Out<Handle>, room: u32, library: Handle) {
        call.enumerate(&to, room, library)
    }

    fn cuLibraryGetModule(call, to: Out<Handle>, library: Handle) {
        call.sim.modules.get(library).ok_or(INVALID_HANDLE)?;
        to.set(library)
    }

    fn cuLibraryGetGlobal(call, to: Out<u64>, size: Out<u64>, library: Handle, name: Text) {
        let name = name.get()?;
        call.find_global(&to, &size, library, name)
    }

    fn cuKernelGetFunction(call, to: Out<Handle>, kernel: Handle) {
        call.kernel(kernel)?;
        to.set(kernel)
    }

    fn cuKernelGetLibrary(call, to: Out<Handle>, kernel: Handle) {
        to.set(call.kernel(kernel)?.module)
    }

    fn cuKernelGetName(call, to: Out<*const c_char>, kernel: Handle) {
        to.set(call.kernel(kernel)?.name.as_ptr())
    }

    fn cuKernelGetAttribute(
        call, to: Out<i32>, attribute: i32, kernel: Handle, _device: i32,
    ) {
        call.attribute(&to, attribute, kernel)
    }

    fn cuKernelSetAttribute(call, attribute: i32, value: i32, kernel: Handle, _device: i32) {
        call.set_attribute(attribute, value, kernel)
    }

    fn cuKernelSetCacheConfig(call, kernel: Handle, _config: u32, _device: i32) {
        call.kernel(kernel).map(|_| ())
    }

    fn cuKernelGetParamInfo(
        call, kernel: Handle, index: u64, offset: Out<u64>, size: Out<u64>,
    ) {
        call.parameter(kernel, index, &offset, &size)
    }

    fn cuKernelGetParamCount(call, kernel: Handle, count: Out<u64>) {
        count.set(call.kernel(kernel)?.entry.parameters.len() as u64)
    }

    fn cuFuncGetName(call, to: Out<*const c_char>, function: Handle) {
        to.set(call.kernel(function)?.name.as_ptr())
    }

    fn cuFuncGetModule(call, to: Out<Handle>, function: Handle) {
        to.set(call.kernel(function)?.module)
    }

    fn cuFuncGetAttribute(call, to: Out<i32>, attribute: i32, function: Handle) {
        call.attribute(&to, attribute, function)
    }

    fn cuFuncSetAttribute(call, function: Handle, attribute: i32, value: i32) {
        call.set_attribute(attribute, value, function)
    }

    fn cuFuncSetCacheConfig(call, function: Handle, _config: u32) {
        call.kernel(function).map(|_| ())
    }

    fn cuFuncSetSharedMemConfig(call, function: Handle, _config: u32) {
        call.kernel(function).map(|_| ())
    }

    fn cuFuncGetParamInfo(
        call, function: Handle, index: u64, offset: Out<u64>, size: Out<u64>,
    ) {
        call.parameter(function, index, &offset, &size)
    }

    fn cuFuncGetParamCount(call, function: Handle, count: Out<u64>) {
        count.set(call.kernel(function)?.entry.parameters.len() as u64)
    }

    fn cuFuncIsLoaded(call, state: Out<u32>, function: Handle) {
        call.kernel(function)?;
        state.set(1)
    }

    fn cuFuncLoad(call, function: Handle) {
        call.kernel(function).map(|_| ())
    }

    fn cuLinkCreate_v2(
        call, _count: u32, _options: In<u32>, _values: In<u64>, to: Out<Handle>,
    ) {
        call.context()?;
        to.required()?;
        to.set(call.sim.linkers.insert(Linker::default()))
    }

    fn cuLinkAddData_v2(
        call, linker: Handle, kind: u32, data: *const c_void, size: usize, _name: In<u8>,
        _count: u32, _options: In<u32>, _values: In<u64>,
    ) {
        call.add(linker, kind, bytes_at(data, size))
    }

    fn cuLinkAddFile_v2(
        call, linker: Handle, kind: u32, path: Text, _count: u32, _options: In<u32>,
        _values: In<u64>,
    ) {
        call.add(linker, kind, read_file(&path)?)
    }

    fn cuLinkComplete(call, linker: Handle, image: Out<*const u8>, size: Out<u64>) {
        let linker = call.sim.linkers.get(linker).ok_or(INVALID_HANDLE)?;
        size.maybe(linker.image.len() as u64);
        image.set(linker.image.as_ptr())
    }

    fn cuLinkDestroy(call, linker: Handle) {
        call.sim.linkers.remove(linker).map(|_| ()).ok_or(INVALID_HANDLE)
    }
}
