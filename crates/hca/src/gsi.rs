//! QP 1, the general services interface: management datagrams in and out, for whoever speaks their protocols.
//!
//! A MAD is one UD SEND of 256 bytes with the well-known Q_Key between QP 1 and QP 1 (IBA 13.5.1, 10.2.5). Programs never
//! see this QP. Incoming MADs and the one timer are given to a [`GsiSink`] within a turn of progress. A front end may have a
//! queue pair of its own that is QP 1 to its peers, or QP 0.

use crate::device::{DEFAULT_PKEY, Device};
use crate::qp::Qp;
use crate::timers::Appointment;
use link::{Datagram, Flow, Path};
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;
use transport::{Count, Counter};
use transport::{Error, Result};
use wire::mad::MAD_LEN;
use wire::{Bth, Deth, Headers, Opcode, Operation, Position, Psn, Service};

/// Number of the queue pair.
pub(crate) const QPN: u32 = 1;
/// Well-known Q_Key of QP 1 (IBA 10.2.5).
pub(crate) const QKEY: u32 = 0x8001_0000;
/// Ways to peers that are kept at hand.
const KEPT_FLOWS: usize = 64;

/// A queue pair that has the same number on every port (IBA 3.9.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ManagementInterface {
    /// QP 0.
    Subnet,
    /// QP 1.
    GeneralServices,
}

impl ManagementInterface {
    /// Number of its queue pair.
    pub fn qpn(self) -> u32 {
        self as u32
    }

    /// The one with this number.
    pub(crate) fn of(qpn: u32) -> Option<ManagementInterface> {
        [ManagementInterface::Subnet, ManagementInterface::GeneralServices]
            .into_iter()
            .find(|interface| interface.qpn() == qpn)
    }

    /// Q_Key of what is sent there. QP 0 knows none.
    pub(crate) fn qkey(self) -> u32 {
        match self {
            ManagementInterface::Subnet => 0,
            ManagementInterface::GeneralServices => QKEY,
        }
    }
}

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

/// Takes what arrives on QP 1. Called within a turn of progress: it must not wait, nor call what waits for a turn.
pub trait GsiSink: Send + Sync {
    /// A MAD arrived.
    fn mad(&self, from: MadPath, mad: &[u8; MAD_LEN], now: Instant);
    /// The deadline set with [`Device::set_gsi_deadline`] may have come.
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
    fn flow(&self, device: &Device, path: Path) -> Result<Flow> {
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = flows.iter().position(|(known, _)| *known == path) {
            return Ok(flows[at].1.clone());
        }
        let flow = device.endpoint().flow(path, QPN).map_err(|error| {
            Error::System(error.raw_os_error().unwrap_or(0), "no source port for the destination")
        })?;
        if flows.len() == KEPT_FLOWS {
            flows.remove(0);
        }
        flows.push((path, flow.clone()));
        Ok(flow)
    }

    fn place(&self, interface: ManagementInterface) -> MutexGuard<'_, Weak<Qp>> {
        self.qps[interface as usize].lock().unwrap_or_else(PoisonError::into_inner)
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
    pub(crate) fn receive(&self, device: &Device, datagram: &Datagram<'_>, now: Instant) {
        let opcode = datagram.headers.bth.opcode;
        let fits = opcode.service == Service::Ud && opcode.operation == Operation::Send;
        let keyed = datagram.headers.deth.is_some_and(|deth| deth.qkey == QKEY);
        let mad: Option<&[u8; MAD_LEN]> = datagram.payload.try_into().ok();
        let (Some(sink), Some(mad), true) = (self.sink.get(), mad, fits && keyed) else {
            return device.directory().count(Counter::RxDropped, 1);
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
        self.appointment.lock().unwrap_or_else(PoisonError::into_inner).came();
        if let Some(sink) = self.sink.get() {
            sink.timer(now);
        }
    }
}

impl Device {
    /// Who takes what arrives on QP 1. The first call decides.
    pub fn set_gsi_sink(&self, sink: Arc<dyn GsiSink>) {
        let _ = self.gsi.sink.set(sink);
    }

    /// Sends a MAD to QP 1 of the peer. It is as unreliable as any datagram.
    ///
    /// # Errors
    /// [`Error::System`] when there is no source port for the destination, [`Error::Lost`] when the device is gone.
    pub fn send_mad(&self, to: MadPath, mad: &[u8; MAD_LEN]) -> Result<()> {
        self.alive()?;
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
        self.send_mad_by(ManagementInterface::GeneralServices, path, mad)
    }

    /// Sends a MAD along `path` to the peer's interface.
    pub(crate) fn send_mad_by(
        &self,
        interface: ManagementInterface,
        path: Path,
        mad: &[u8; MAD_LEN],
    ) -> Result<()> {
        let flow = self.gsi.flow(self, path)?;
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
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qp: interface.qpn(),
            ack_req: false,
            psn: Psn::new(self.gsi.psn.fetch_add(1, Relaxed)),
        });
        headers.deth = Some(Deth { qkey: interface.qkey(), src_qp: interface.qpn() });
        let mut batch = self.take_batch();
        let Ok(()) = batch.packet(self.endpoint(), &flow, &headers, MAD_LEN, &mut |out, _| {
            out.copy_from_slice(mad);
            Ok::<_, Infallible>(())
        });
        batch.flush(self.endpoint());
        self.return_batch(batch);
        Ok(())
    }

    /// Asks for [`GsiSink::timer`] at `at` or earlier. Later deadlines than one already set cost nothing.
    pub fn set_gsi_deadline(&self, at: Instant) {
        if self.gsi.appointment.lock().unwrap_or_else(PoisonError::into_inner).make(at) {
            self.set_timer(at, QPN);
        }
    }
}
