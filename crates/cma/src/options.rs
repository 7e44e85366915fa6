//! Options of an id.

use crate::cma::Cma;
use crate::error::Error;
use crate::event::EventKind;
use crate::id::{IdState, Key, Path, QpType};
use crate::ports::Sharing;

/// An option and its value (`RDMA_OPTION_ID_*`, `RDMA_OPTION_IB_PATH`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdOption {
    /// Type of service: DSCP and ECN.
    Tos(u8),
    /// May share its port with others that may.
    ReuseAddr(bool),
    /// An IPv6 address does not stand for IPv4 ones as well.
    AfOnly(bool),
    /// Local ACK timeout of the queue pair: 4.096 µs · 2^n.
    AckTimeout(u8),
    /// The path, instead of resolving the route. Only what RoCE has of it counts.
    Path(Path),
}

impl Cma {
    /// How an id shares its port by its options now.
    ///
    /// # Errors
    /// ENOENT when it is gone.
    pub fn sharing(&self, key: Key) -> Result<Sharing, Error> {
        let id = self.id(key)?;
        Ok(Sharing { reuse: id.reuse, one_family: id.one_family == Some(true) })
    }

    /// Sets an option.
    ///
    /// # Errors
    /// EINVAL in a state where it comes too late, or for a queue pair without that attribute.
    pub fn set_option(&mut self, key: Key, option: IdOption) -> Result<(), Error> {
        let id = self.id_mut(key)?;
        match option {
            IdOption::Tos(tos) => id.traffic_class = Some(tos),
            IdOption::ReuseAddr(reuse) => {
                let ok = id.state == IdState::Idle || (reuse && id.state != IdState::Listening);
                if !ok {
                    return Err(Error::INVAL);
                }
                id.reuse = reuse;
            }
            IdOption::AfOnly(one_family) => {
                if !matches!(id.state, IdState::Idle | IdState::Bound) {
                    return Err(Error::INVAL);
                }
                id.one_family = Some(one_family);
            }
            IdOption::AckTimeout(timeout) => {
                if !matches!(id.qp_type, QpType::RC | QpType::XRC_SEND) {
                    return Err(Error::INVAL);
                }
                id.ack_timeout = Some(timeout);
            }
            IdOption::Path(path) => {
                if id.state != IdState::AddrResolved {
                    return Err(Error::INVAL);
                }
                let resolved = id.make_path().ok_or(Error::INVAL)?;
                id.path = Some(Path { sgid: resolved.sgid, dgid: resolved.dgid, ..path });
                id.state = IdState::RouteResolved;
                self.report(key, EventKind::RouteResolved, 0);
            }
        }
        Ok(())
    }
}
