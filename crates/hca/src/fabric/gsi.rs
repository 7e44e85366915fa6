//! QP 1, the general services interface: management datagrams in and out, for whoever speaks their
//! protocols.
//!
//! A MAD is one UD SEND of 256 bytes with the well-known Q_Key between QP 1 and QP 1 (IBA 13.5.1,
//! 10.2.5). Programs never see this QP. Incoming MADs and the one timer are given to a [`GsiSink`]
//! within a turn of progress. A front end may have a queue pair of its own that is QP 1 to its
//! peers, or QP 0.

use crate::adapter::Adapter;
use crate::adapter::management::{GSI_QKEY, GSI_QPN, ManagementInterface};
use crate::adapter::timers::Appointment;
use crate::objects::qp::Qp;
use engine_thread::lock;
use link::{Datagram, Flow, Path};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Instant;
use transport::{Count, Counter};
use transport::{Error, Result};
use wire::mad::MAD_LEN;
use wire::{Bth, Deth, Headers, Opcode, Operation, Position, Psn, Service};

/// Ways to peers that are kept at hand.
const KEPT_FLOWS: usize = 64;

/// Where a MAD comes from or goes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MadPath {
    /// An address of this host.
    pub local: IpAddr,
    /// The peer.
    pub remote: IpAddr,
    /// Interface for link-local addresses; the one it came in by.
    pub ifindex: u32,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL or hop limit; 0 leaves it to the kernel.
    pub hop_limit: u8,
}

/// Takes what arrives on QP 1. Called within a turn of progress: it must not wait, nor call what
/// waits for a turn.
pub trait GsiSink: Send + Sync {
    /// A MAD arrived.
    fn mad(&self, from: MadPath, mad: &[u8; MAD_LEN], now: Instant);
    /// The deadline set with [`GeneralServices::set_deadline`] may have come.
    fn timer(&self, now: Instant);
}

/// State of QP 1.
#[derive(Default)]
pub(crate) struct Gsi {
    sink: OnceLock<Arc<dyn GsiSink>>,
    /// The queue pairs that are QP 0 and QP 1, where the front end has them.
    qps: [Mutex<Weak<Qp>>; 2],
    flows: Mutex<Vec<(Path, Flow)>>,
    appointment: Mutex<Appointment>,
    psn: AtomicU32,
}

impl Gsi {
    /// The way along `path`; a new one takes a system call or two.
    fn flow(&self, adapter: &Adapter, path: Path) -> Result<Flow> {
        let mut flows = lock(&self.flows);
        if let Some(at) = flows.iter().position(|(known, _)| *known == path) {
            return Ok(flows[at].1.clone());
        }
        let flow = adapter.endpoint().flow(path, GSI_QPN).map_err(|error| {
            Error::System(error.raw_os_error().unwrap_or(0), "no source port for the destination")
        })?;
        if flows.len() == KEPT_FLOWS {
            flows.remove(0);
        }
        flows.push((path, flow.clone()));
        Ok(flow)
    }

    fn place(&self, interface: ManagementInterface) -> MutexGuard<'_, Weak<Qp>> {
        lock(&self.qps[interface as usize])
    }

    /// From now on `qp` is the interface's.
    pub(crate) fn serve_by(&self, interface: ManagementInterface, qp: &Arc<Qp>) {
        *self.place(interface) = Arc::downgrade(qp);
    }

    /// The queue pair that is the interface's, where the front end has one.
    pub(crate) fn qp(&self, interface: ManagementInterface) -> Option<Arc<Qp>> {
        self.place(interface).upgrade()
    }

    /// A datagram for QP 1.
    pub(crate) fn receive(&self, adapter: &Adapter, datagram: &Datagram<'_>, now: Instant) {
        let opcode = datagram.headers.bth.opcode;
        let fits = opcode.service == Service::Ud && opcode.operation == Operation::Send;
        let keyed = datagram.headers.deth.is_some_and(|deth| deth.qkey == GSI_QKEY);
        let mad: Option<&[u8; MAD_LEN]> = datagram.payload.try_into().ok();
        let (Some(sink), Some(mad), true) = (self.sink.get(), mad, fits && keyed) else {
            return adapter.directory().count(Counter::RxDropped, 1);
        };
        let from = MadPath {
            local: datagram.dst,
            remote: datagram.src,
            ifindex: datagram.ifindex,
            traffic_class: datagram.traffic_class,
            hop_limit: datagram.hop_limit,
        };
        sink.mad(from, mad, now);
    }

    /// The timer of QP 1 came due.
    pub(crate) fn timer(&self, now: Instant) {
        lock(&self.appointment).came();
        if let Some(sink) = self.sink.get() {
            sink.timer(now);
        }
    }

    /// Sends a MAD along `path` to the peer's interface.
    pub(crate) fn send(
        &self,
        adapter: &Adapter,
        interface: ManagementInterface,
        path: Path,
        mad: &[u8; MAD_LEN],
    ) -> Result<()> {
        let flow = self.flow(adapter, path)?;
        let opcode = Opcode {
            service: Service::Ud,
            operation: Operation::Send,
            position: Position::Only,
            imm: false,
            invalidate: false,
        };
        let mut headers = Headers::new(Bth {
            opcode,
            solicited: false,
            migrated: true,
            pad: 0,
            pkey: wire::DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qp: interface.qpn(),
            ack_req: false,
            psn: Psn::new(self.psn.fetch_add(1, Relaxed)),
        });
        headers.deth = Some(Deth { qkey: interface.qkey(), src_qp: interface.qpn() });
        let mut batch = adapter.take_batch();
        let Ok(()) = batch.packet(adapter.endpoint(), &flow, &headers, MAD_LEN, &mut |out, _| {
            out.copy_from_slice(mad);
            Ok::<_, Infallible>(())
        });
        batch.flush(adapter.endpoint());
        adapter.return_batch(batch);
        Ok(())
    }
}

/// QP 1 of a device: see [`Device::general_services`](crate::Device::general_services).
pub struct GeneralServices<'a> {
    pub(crate) adapter: &'a Adapter,
    pub(crate) gsi: &'a Gsi,
}

impl GeneralServices<'_> {
    /// Who takes what arrives on QP 1. The first call decides.
    pub fn set_sink(&self, sink: Arc<dyn GsiSink>) {
        let _ = self.gsi.sink.set(sink);
    }

    /// Sends a MAD to QP 1 of the peer. It is as unreliable as any datagram.
    ///
    /// # Errors
    /// [`Error::System`] when there is no source port for the destination, [`Error::Lost`] when the
    /// device is gone.
    pub fn send(&self, to: MadPath, mad: &[u8; MAD_LEN]) -> Result<()> {
        self.adapter.alive()?;
        let link_local = matches!(to.remote, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let path = Path {
            src: to.local,
            dst: to.remote,
            scope_id: if link_local { to.ifindex } else { 0 },
            traffic_class: to.traffic_class,
            hop_limit: to.hop_limit,
            flow_label: 0,
            ethernet: None,
        };
        self.gsi.send(self.adapter, ManagementInterface::GeneralServices, path, mad)
    }

    /// Asks for [`GsiSink::timer`] at `at` or earlier. Later deadlines than one already set cost
    /// nothing.
    pub fn set_deadline(&self, at: Instant) {
        if lock(&self.gsi.appointment).make(at) {
            self.adapter.set_timer(at, GSI_QPN);
        }
    }
}
