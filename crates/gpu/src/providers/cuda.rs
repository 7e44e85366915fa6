//! Memory of an NVIDIA GPU, exported by CUDA's driver (`cuMemGetHandleForAddressRange`). Its
//! exporter pins for as long as anybody is attached, and does not let the CPU map: the bytes are
//! reached by copies of the driver's.

use super::cuda_driver::{Context, Device, Driver, Mapping};
use super::exported::whole_pages;
use crate::provider::check_range;
use crate::{Error, Memory, Provider, Residence, Traits};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A GPU of CUDA's.
pub struct CudaGpu {
    name: String,
    address: Option<pcie::Address>,
    context: Arc<Context>,
}

impl CudaGpu {
    /// The driver's library.
    pub const LIBRARY: &str = "libcuda.so.1";

    /// What its exports are (`nv-dmabuf.c` of NVIDIA's open kernel modules).
    pub const TRAITS: Traits = Traits {
        dynamic: Some(false),
        mmap: Some(false),
        moves: Some(false),
        residence: Some(Residence::Device),
    };

    /// The GPUs that a driver's library names, each asked whether it exports.
    ///
    /// # Errors
    /// [`Error::NoLibrary`], [`Error::NoFunction`], and [`Error::Cuda`] where the driver finds no
    /// GPU.
    pub fn all(library: &str) -> Result<Vec<Result<CudaGpu, Error>>, Error> {
        let driver = Arc::new(Driver::load(library)?);
        let devices = driver.devices()?;
        if devices.is_empty() {
            let name = "no device".to_owned();
            return Err(Error::Cuda { call: "cuDeviceGetCount", name });
        }
        Ok(devices.into_iter().map(|device| CudaGpu::open(&driver, device)).collect())
    }

    fn open(driver: &Arc<Driver>, device: Device) -> Result<CudaGpu, Error> {
        let name = driver.name(device)?;
        let bus_id = driver.bus_id(device)?.to_lowercase();
        let name = format!("{name} at {bus_id}");
        if !driver.exports_dmabufs(device)? {
            return Err(Error::NoDmaBuf(name));
        }
        let context = Arc::new(Context::retain(driver.clone(), device)?);
        Ok(CudaGpu { name, address: bus_id.parse().ok(), context })
    }
}

impl Provider for CudaGpu {
    fn name(&self) -> &str {
        &self.name
    }
    fn traits(&self) -> Traits {
        CudaGpu::TRAITS
    }
    fn address(&self) -> Option<pcie::Address> {
        self.address
    }
    fn alloc(&self, len: u64) -> Result<Box<dyn Memory>, Error> {
        let (page, size) = (mm::page_size(), whole_pages(len)?);
        // Small allocations share a page with others: one more, and the exported part begins at a
        // page.
        let room = size.checked_add(page).and_then(|room| usize::try_from(room).ok());
        let allocated = self.context.alloc(room.ok_or(Error::BadLength(len))?)?;
        let start = allocated.next_multiple_of(page);
        let memory = CudaMemory { context: self.context.clone(), allocated, start, len, size };
        self.context.sync_copies(allocated)?;
        Ok(Box::new(memory))
    }
}

/// Memory of a GPU.
struct CudaMemory {
    context: Arc<Context>,
    allocated: u64,
    /// First byte, at a page.
    start: u64,
    len: u64,
    /// `len` in whole pages.
    size: u64,
}

impl Memory for CudaMemory {
    fn len(&self) -> u64 {
        self.len
    }
    /// The export is a mapping through BAR1, as peers need it, or else what the driver chooses:
    /// drivers before CUDA 12.8 know no other.
    fn export(&self) -> Result<OwnedFd, Error> {
        let size = self.size as usize;
        self.context
            .export(self.start, size, Mapping::Pcie)
            .or_else(|_| self.context.export(self.start, size, Mapping::Default))
    }
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), Error> {
        check_range(offset, dst.len(), self.len)?;
        self.context.read(self.start + offset, dst)
    }
    fn write(&self, offset: u64, src: &[u8]) -> Result<(), Error> {
        check_range(offset, src.len(), self.len)?;
        self.context.write(self.start + offset, src)
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        // A failure means that the driver is gone, and the memory with it.
        let _ = self.context.free(self.allocated);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_a_remedy() {
        let error = CudaGpu::all("libcuda-that-nobody-has.so.1").err().unwrap();
        let said = error.to_string();
        assert!(said.contains("libcuda-that-nobody-has.so.1"), "{said}");
        assert!(said.contains("NVIDIA's driver"), "{said}");
        assert_eq!(error.errno(), libc::EOPNOTSUPP);
    }

    #[test]
    fn a_library_without_the_functions_is_refused() {
        let error = CudaGpu::all("libc.so.6").err().unwrap();
        assert_eq!(error, Error::NoFunction { library: "libc.so.6".to_owned(), name: "cuInit" });
    }
}
