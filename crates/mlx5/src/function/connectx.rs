//! The PCI function: BAR 0 with the initialization segment, the interrupt table's place and the
//! UARs, and what writes to them set off.

use crate::command::execute::Commands;
use crate::command::mailbox::{CommandQueue, LOG_ENTRIES};
use crate::function::doorbells;
use crate::function::init_segment::{self, InitSegment, Written};
use crate::keys::memic::{self, Memic};
use crate::machine::budget::Budget;
use crate::machine::bus::Bus;
use crate::machine::report::{Act, Reports, WatchedBus};
use crate::nic::Nic;
use crate::object::eq::{Eqs, event};
use crate::object::objects::Objects;
use crate::object::page_fault::Faults;
use crate::object::port::Port;
use crate::object::shared::Shared;
use engine_thread::lock;
use hca::PdId;
use hca::transport::{Count, PageFault};
use hca::{AsyncEvent, Counter, Device, EventSink, EventSource, EventType, Qp};
use std::sync::{Arc, Mutex, Weak};

/// Bytes of BAR 0.
pub const BAR_LEN: u64 = 32 << 20;
/// Interrupt vectors.
pub const VECTORS: u16 = 64;
/// Where BAR 0 leaves room for the interrupt table.
pub const MSIX_TABLE: u32 = 0x4000;
/// Where for its pending bits.
pub const MSIX_PENDING: u32 = 0x5000;

/// A software ConnectX.
pub struct ConnectX {
    pub(crate) shared: Arc<Shared>,
    segment: Mutex<InitSegment>,
    commands: Mutex<Commands>,
    /// The Ethernet side, of a port on one.
    nic: Arc<Nic>,
}

/// Tells the driver of the HCA's events.
struct Events {
    hca: Weak<Device>,
    eqs: Arc<Eqs>,
    faults: Arc<Faults>,
}

impl EventSink for Events {
    fn event(&self, event: AsyncEvent) {
        let EventSource::Qp(qp) = event.source else { return };
        let number = qp.upgrade().and_then(|qp| qp.downcast_ref().map(Qp::number));
        let Some(number) = number else { return };
        let kind = match event.event {
            EventType::CommEst => event::COMMUNICATION_ESTABLISHED,
            EventType::SqDrained => event::SEND_QUEUE_DRAINED,
            EventType::QpFatal => event::WQ_CATASTROPHIC,
            EventType::QpReqErr => event::WQ_INVALID_REQUEST,
            EventType::QpAccessErr => event::WQ_ACCESS,
            EventType::QpLastWqeReached => event::LAST_WQE,
            _ => return,
        };
        self.eqs.post_work_queue(kind, 0, number);
    }

    fn page_fault(&self, qp: u32, fault: PageFault) -> bool {
        let told = self.faults.tell(&self.eqs, qp, &fault);
        if let Some(hca) = self.hca.upgrade().filter(|_| told) {
            hca.directory().count(Counter::PageFaultEvents, 1);
        }
        told
    }
}

impl ConnectX {
    /// A function over `hca`, a device of an InfiniBand subnet ([`hca::Network::Subnet`]) or an
    /// Ethernet ([`hca::Network::Ethernet`]) that nobody else uses. What the guest makes this
    /// process remember takes at most `max_memory_bytes`; a command that asks for more is refused.
    pub fn new(hca: Arc<Device>, bus: Arc<dyn Bus>, max_memory_bytes: u64) -> ConnectX {
        let reports = Arc::new(Reports::default());
        let bus: Arc<dyn Bus> = Arc::new(WatchedBus { bus, reports: reports.clone() });
        let eqs = Arc::new(Eqs::new(bus.clone(), reports.clone()));
        let faults = Arc::new(Faults::default());
        let events = Events { hca: Arc::downgrade(&hca), eqs: eqs.clone(), faults: faults.clone() };
        hca.set_event_sink(Arc::new(events));
        let port = Port::new(hca.attr().node_guid, hca.slot());
        let budget = Budget::new(max_memory_bytes);
        let nic = Arc::<Nic>::default();
        let commands = Commands::new(&hca, &budget, nic.clone());
        nic.attach(&hca);
        // Keys that are not in use are in it; a device that is lost has none in use.
        let no_pd = hca.alloc_pd().map_or(PdId(0), |pd| pd.id());
        let objects = Objects::default();
        let memic = Memic::default();
        let shared = Arc::new(Shared {
            hca,
            bus,
            eqs,
            objects,
            memic,
            faults,
            port,
            reports,
            no_pd,
            budget,
        });
        ConnectX {
            shared,
            segment: Mutex::new(InitSegment::default()),
            commands: Mutex::new(commands),
            nic,
        }
    }

    /// From now on tells `teller` what the driver does wrong: each act once, until a reset. It may
    /// be called with locks held.
    pub fn on_guest_error(&self, teller: impl Fn(&str) + Send + Sync + 'static) {
        self.shared.reports.tell_to(Box::new(teller));
    }

    /// Its node GUID.
    pub(crate) fn guid(&self) -> u64 {
        self.shared.port.guid()
    }

    /// Reads BAR 0; what is not there is 0.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        if offset < init_segment::LEN {
            lock(&self.segment).read(self.shared.hca.now_ns(), offset, data);
        } else if memic::WINDOWS.contains(&offset) {
            self.shared.memic.read(offset, data);
        }
    }

    /// Writes BAR 0.
    pub fn write(&self, offset: u64, data: &[u8]) {
        if offset < init_segment::LEN {
            let written = lock(&self.segment).write(offset, data);
            if let Written::Doorbell(entries) = written {
                self.run_commands(entries);
            }
        } else if memic::WINDOWS.contains(&offset) {
            self.shared.memic.write(offset, data);
        } else if doorbells::is_at(offset) {
            doorbells::write(&self.shared, &self.nic, offset, data);
        }
    }

    /// Whether a write there rings for queues: what lies in them is read then, in memory, and
    /// carried out.
    pub(crate) fn is_doorbell(offset: u64) -> bool {
        offset == init_segment::DOORBELL || doorbells::is_at(offset)
    }

    /// As after power-on. When it returns nothing reaches the machine's memory any more.
    pub fn reset(&self) {
        *lock(&self.segment) = InitSegment::default();
        let mut commands = lock(&self.commands);
        commands.end_all(&self.shared);
        self.shared.reports.clear();
        *commands = Commands::new(&self.shared.hca, &self.shared.budget, self.nic.clone());
    }

    fn run_commands(&self, entries: u32) {
        let Some(address) = lock(&self.segment).queue() else { return };
        let queue = CommandQueue::new(self.shared.bus.memory(), address);
        let mut commands = lock(&self.commands);
        let mut done = 0;
        for index in (0..1 << LOG_ENTRIES).filter(|index| entries >> index & 1 == 1) {
            let fetched = queue.fetch(index).unwrap_or_else(|why| {
                let place = format_args!("entry {index}");
                self.shared.reports.tell(Act::Undelivered(why), place);
                None
            });
            if let Some(command) = fetched {
                // The command that makes the queue for such events is not told of there: its driver
                // still polls.
                let told = self.shared.eqs.wants(event::COMMAND);
                let output = commands.run(&self.shared, &command.input);
                queue.complete(command, output);
                done |= u32::from(told) << index;
            }
        }
        if done != 0 {
            self.shared.eqs.post_commands(done);
        }
    }
}

impl Drop for ConnectX {
    fn drop(&mut self) {
        self.reset();
    }
}
