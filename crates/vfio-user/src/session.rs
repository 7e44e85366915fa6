//! One client's conversation: each of its requests, in order.

use crate::channel::Message;
use crate::client::Client;
use crate::config::{self, Config, Effect};
use crate::function::{Bar, Description, Function};
use crate::host::Host;
use crate::neighbours::Window;
use crate::posted::Posted;
use crate::protocol::{
    Body, Header, IRQ_ACTION_TRIGGER, IRQ_DATA_EVENTFD, IRQ_DATA_NONE, MAP_WRITE, MAX_DATA,
    MAX_FDS, NO_REPLY, Request, UNMAP_ALL,
};
use mm::Mapping;
use rustix::io::{Errno, Result};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Regions and kinds of interrupt of a PCI device (`linux/vfio.h`).
const BARS: u32 = 6;
const CONFIG_REGION: u32 = 7;
const REGIONS: u32 = 9;
const MSIX_IRQ: u32 = 2;
/// Errors of the device, of which there are none. QEMU warns of one that could not tell.
const ERROR_IRQ: u32 = 3;
const IRQ_KINDS: u32 = 5;
/// `VFIO_DEVICE_FLAGS_RESET` and `VFIO_DEVICE_FLAGS_PCI`.
const DEVICE_FLAGS: u32 = 3;
/// `VFIO_REGION_INFO_FLAG_READ`, `_WRITE` and `_MMAP`.
const REGION_FLAGS: u32 = 3;
const REGION_MMAP: u32 = 4;
/// `VFIO_IRQ_INFO_EVENTFD`.
const IRQ_FLAGS: u32 = 1;
/// Bytes of region and interrupt information.
const REGION_INFO: u32 = 32;
const IRQ_INFO: u32 = 16;

/// A client and the function it uses.
pub(crate) struct Session<'a> {
    host: &'a Host,
    function: &'a dyn Function,
    description: &'a Description,
    client: Arc<Client>,
    posted: &'a Posted,
    config: Config,
    /// The interrupt table's bytes. The client keeps interrupts itself; these are for its reads.
    table: Vec<u8>,
    greeted: bool,
    /// The BARs of plain memory, as mapped here.
    memories: Vec<(usize, Arc<Mapping>)>,
}

/// What a request is answered with.
#[derive(Default)]
struct Answer {
    body: Body,
    data: Vec<u8>,
    fd: Option<Arc<OwnedFd>>,
}

impl From<Body> for Answer {
    fn from(body: Body) -> Answer {
        Answer { body, ..Answer::default() }
    }
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        host: &'a Host,
        function: &'a dyn Function,
        description: &'a Description,
        client: Arc<Client>,
        posted: &'a Posted,
    ) -> Session<'a> {
        let table = description.msix.map_or(0, |msix| msix.table_len() as usize);
        Session {
            host,
            function,
            description,
            client,
            posted,
            config: Config::new(description),
            table: vec![0; table],
            greeted: false,
            memories: memories(description),
        }
    }

    /// Serves the client until it goes.
    ///
    /// # Errors
    /// Why it was hung up on: the stream's own error, or `INVAL` for bytes that are no messages.
    pub(crate) fn run(&mut self) -> Result<()> {
        self.host.interrupts.clear(self.vectors());
        self.host.map.connect(self.client.clone());
        while let Some(message) = self.client.channel().receive()? {
            if message.header.is_reply() {
                self.client.deliver(message);
            } else {
                self.serve(message)?;
            }
        }
        Ok(())
    }

    fn vectors(&self) -> u16 {
        self.description.msix.map_or(0, |msix| msix.vectors)
    }

    fn serve(&mut self, message: Message) -> Result<()> {
        let Message { header, body, fds } = message;
        let request = Request::parse(header.command, &body);
        let greets = matches!(request, Ok(Request::Version { .. }));
        if self.greeted == greets {
            self.client.refuse(&header, Errno::INVAL)?;
            return Err(Errno::INVAL);
        }
        // A posted write is answered before it is carried out, as a bus does: the client's
        // processor goes on.
        if let Ok(Request::RegionWrite { offset, region, data }) = request
            && region < BARS
        {
            let range = self.bar_range(region, offset, data.len());
            self.answer(&header, range.map(|_| write_done(offset, region, data.len())))?;
            if range.is_ok() {
                self.write_bar(region as u8, offset, data);
            }
            return Ok(());
        }
        let answer = request.and_then(|request| self.carry_out(request, fds));
        let failed_greeting = greets && answer.is_err();
        self.answer(&header, answer)?;
        if failed_greeting { Err(Errno::INVAL) } else { Ok(()) }
    }

    fn answer(&self, header: &Header, answer: Result<Answer>) -> Result<()> {
        if header.flags & NO_REPLY != 0 {
            return Ok(());
        }
        match answer {
            Ok(answer) => {
                let fd = answer.fd.as_ref().map(|fd| fd.as_fd());
                self.client.reply(header, [&answer.body.0, &answer.data], fd)
            }
            Err(error) => self.client.refuse(header, error),
        }
    }

    fn carry_out(&mut self, request: Request, fds: Vec<OwnedFd>) -> Result<Answer> {
        match request {
            Request::Version { major, minor, capabilities } => {
                self.greet(major, minor, capabilities)
            }
            Request::DmaMap { flags, offset, address, size } => {
                let file = fds.into_iter().next().map(|fd| (fd, offset));
                self.host.map.map(address, size, flags & MAP_WRITE != 0, file)?;
                Ok(Answer::default())
            }
            Request::DmaUnmap { flags, address, size } => {
                if flags & UNMAP_ALL != 0 {
                    self.host.map.unmap_all();
                } else {
                    self.host.map.unmap(address, size)?;
                }
                Ok(Body::default().u32(24).u32(flags).u64(address).u64(size).into())
            }
            Request::GetInfo => {
                Ok(Body::default().u32(16).u32(DEVICE_FLAGS).u32(REGIONS).u32(IRQ_KINDS).into())
            }
            Request::GetRegionInfo { room, index } => self.region_info(room, index),
            Request::GetIrqInfo { index } => {
                if index >= IRQ_KINDS {
                    return Err(Errno::INVAL);
                }
                let count = match index {
                    MSIX_IRQ => self.vectors().into(),
                    ERROR_IRQ => 1,
                    _ => 0,
                };
                Ok(Body::default().u32(IRQ_INFO).u32(IRQ_FLAGS).u32(index).u32(count).into())
            }
            Request::SetIrqs { flags, index, start, count } => {
                self.set_irqs(flags, index, start, count, fds)?;
                Ok(Answer::default())
            }
            Request::RegionRead { offset, region, count } => self.read(region, offset, count),
            Request::RegionWrite { offset, region, data } => {
                let range = region_range(region, offset, data.len())?;
                let effect = self.config.write(range.start, data);
                self.take_effect(effect);
                self.show_windows();
                Ok(write_done(offset, region, data.len()))
            }
            Request::Reset => {
                self.reset();
                Ok(Answer::default())
            }
        }
    }

    /// Agrees on version 0 and on how much a message may carry.
    fn greet(&mut self, major: u16, minor: u16, capabilities: &[u8]) -> Result<Answer> {
        if major != 0 {
            return Err(Errno::INVAL);
        }
        if !capabilities.is_empty() {
            let said: Greeting = serde_json::from_slice(capabilities).map_err(|_| Errno::INVAL)?;
            if let Some(most) = said.capabilities.max_data_xfer_size {
                self.client.limit_data(usize::try_from(most).unwrap_or(usize::MAX));
            }
        }
        self.greeted = true;
        let own = Greeting {
            capabilities: Capabilities {
                max_msg_fds: Some(MAX_FDS as u64),
                max_data_xfer_size: Some(MAX_DATA as u64),
                max_dma_maps: Some(crate::map::MAX_RANGES as u64),
            },
        };
        let json = serde_json::to_vec(&own).map_err(|_| Errno::INVAL)?;
        Ok(Body::default().u16(0).u16(minor.min(1)).bytes(&json).bytes(&[0]).into())
    }

    fn region_info(&self, room: u32, index: u32) -> Result<Answer> {
        if room < REGION_INFO || index >= REGIONS {
            return Err(Errno::INVAL);
        }
        let bar = self.description.bars.get(index as usize).and_then(Option::as_ref);
        let memory = bar.and_then(|bar| bar.memory.clone());
        let size = match index {
            CONFIG_REGION => config::LEN as u64,
            _ => self.description.bar_size(index as usize),
        };
        let map = if memory.is_some() { REGION_MMAP } else { 0 };
        let flags = if size > 0 { REGION_FLAGS | map } else { 0 };
        let body = Body::default().u32(REGION_INFO).u32(flags).u32(index).u32(0).u64(size).u64(0);
        Ok(Answer { body, fd: memory, ..Answer::default() })
    }

    fn set_irqs(
        &self,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
        fds: Vec<OwnedFd>,
    ) -> Result<()> {
        const EVENTS: u32 = IRQ_ACTION_TRIGGER | IRQ_DATA_EVENTFD;
        const NONE: u32 = IRQ_ACTION_TRIGGER | IRQ_DATA_NONE;
        if index >= IRQ_KINDS {
            return Err(Errno::INVAL);
        }
        match (index, flags) {
            (MSIX_IRQ, EVENTS) => self.host.interrupts.assign(start, count, fds),
            // Of none of them nothing is data: the driver switches all interrupts off.
            (MSIX_IRQ, NONE) if count == 0 => {
                self.host.interrupts.clear(self.vectors());
                Ok(())
            }
            (ERROR_IRQ, EVENTS) if start == 0 && count == 1 => Ok(()),
            // Other kinds have no interrupt that could be switched on.
            (_, NONE) if count == 0 => Ok(()),
            _ => Err(Errno::INVAL),
        }
    }

    fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Answer> {
        let mut data = vec![0; count as usize];
        if region < BARS {
            self.bar_range(region, offset, data.len())?;
            match self.interrupt_registers(region, offset, data.len()) {
                Some(range) => data.copy_from_slice(&self.table[range]),
                None if self.is_pending(region, offset) => {}
                None => self.function.bar_read(region as u8, offset, &mut data),
            }
        } else {
            let range = region_range(region, offset, data.len())?;
            self.config.read(range.start, &mut data);
        }
        let body = Body::default().u64(offset).u32(region).u32(count);
        Ok(Answer { body, data, ..Answer::default() })
    }

    fn write_bar(&mut self, bar: u8, offset: u64, data: &[u8]) {
        match self.interrupt_registers(bar.into(), offset, data.len()) {
            Some(range) => self.table[range].copy_from_slice(data),
            None if self.is_pending(bar.into(), offset) => {}
            // Also what takes no time any more comes after what did.
            None if self.function.takes_time(bar, offset) || !self.posted.is_idle() => {
                self.post(bar, offset, data);
            }
            None => self.function.bar_write(bar, offset, data),
        }
    }

    /// Has a write carried out by the other thread. That one waits for nobody while this one waits
    /// for it.
    fn post(&self, bar: u8, offset: u64, data: &[u8]) {
        while !self.posted.push(bar, offset, data) {
            self.client.hold(true);
            self.posted.wait_for_room();
            self.client.hold(false);
        }
    }

    /// The bytes of the interrupt table that an access means, if it lies in it.
    fn interrupt_registers(&self, bar: u32, offset: u64, len: usize) -> Option<Range<usize>> {
        let msix = self.description.msix.filter(|msix| u32::from(msix.bar) == bar)?;
        let start = usize::try_from(offset.checked_sub(msix.table.into())?).ok()?;
        let range = start..start.checked_add(len)?;
        (range.end <= self.table.len()).then_some(range)
    }

    /// Whether an access begins in the pending bits. None ever is: an interrupt goes out when it is
    /// raised.
    fn is_pending(&self, bar: u32, offset: u64) -> bool {
        self.description.msix.is_some_and(|msix| {
            let start = u64::from(msix.pending);
            u32::from(msix.bar) == bar && (start..start + msix.pending_len()).contains(&offset)
        })
    }

    /// Checks that an access lies in its BAR.
    fn bar_range(&self, bar: u32, offset: u64, len: usize) -> Result<()> {
        let end = offset.checked_add(len as u64).ok_or(Errno::INVAL)?;
        if end <= self.description.bar_size(bar as usize) { Ok(()) } else { Err(Errno::INVAL) }
    }

    fn take_effect(&mut self, effect: Effect) {
        if let Some(allowed) = effect.master {
            self.host.map.set_master(allowed);
        }
        if effect.reset {
            self.reset();
        }
    }

    /// As after power-on; the machine's memory stays mapped and its interrupts stay where they go.
    fn reset(&mut self) {
        self.host.map.set_master(false);
        self.config.reset();
        self.table.fill(0);
        self.show_windows();
        self.posted.forget();
        // Nobody waits for the machine while its answers are not taken.
        self.client.hold(true);
        self.posted.settle();
        self.function.reset();
        self.client.hold(false);
    }

    /// Lets neighbours know where this function's memory lies now.
    fn show_windows(&self) {
        let Some(machine) = self.client.machine() else { return };
        let windows = self.memories.iter().filter_map(|(bar, memory)| {
            let address = self.config.bar(*bar)?;
            Some(Window { machine, address, memory: memory.clone() })
        });
        self.host.windows.set(windows.collect());
    }
}

/// The BARs of plain memory. One that cannot be mapped here is reached through the machine.
fn memories(description: &Description) -> Vec<(usize, Arc<Mapping>)> {
    let memory = |bar: &Bar| {
        let fd = bar.memory.as_ref()?;
        Mapping::shared(fd.as_fd(), bar.size).ok().map(Arc::new)
    };
    let bars = description.bars.iter().enumerate();
    bars.filter_map(|(index, bar)| Some((index, memory(bar.as_ref()?)?))).collect()
}

/// The range in configuration space, the only region besides the BARs.
fn region_range(region: u32, offset: u64, len: usize) -> Result<Range<usize>> {
    let start = usize::try_from(offset).map_err(|_| Errno::INVAL)?;
    let end = start.checked_add(len).ok_or(Errno::INVAL)?;
    if region == CONFIG_REGION && end <= config::LEN { Ok(start..end) } else { Err(Errno::INVAL) }
}

fn write_done(offset: u64, region: u32, len: usize) -> Answer {
    Body::default().u64(offset).u32(region).u32(len as u32).into()
}

/// The JSON of a VERSION message. A side leaves out what it has no wish for, and does not know all
/// that the other says.
#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Greeting {
    #[serde(default)]
    capabilities: Capabilities,
}

#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Capabilities {
    max_msg_fds: Option<u64>,
    max_data_xfer_size: Option<u64>,
    max_dma_maps: Option<u64>,
}
