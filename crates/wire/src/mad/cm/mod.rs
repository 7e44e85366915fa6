//! Messages of communication management (IBA 12.6), one a file: what is in them, and where.
//!
//! Numbers that do not fit their field are cut to it. Private data of MRA, RTU, DREQ and DREP is
//! left out: nobody uses it.

mod datagram;
mod dreq;
mod ip_header;
mod mra;
pub mod place;
mod rej;
mod rep;
mod req;
mod sidr;

pub use datagram::{About, Ece, Ids, Kind, Mad};
pub use dreq::Dreq;
pub use ip_header::{IP_HEADER_LEN, IpHeader};
pub use mra::Mra;
pub use rej::{REJ_INFO_LEN, REJ_PRIVATE_LEN, Reason, Rej};
pub use rep::{REP_PRIVATE_LEN, Rep};
pub use req::{REQ_PRIVATE_LEN, Req, Transport};
pub use sidr::{SIDR_REP_PRIVATE_LEN, SIDR_REQ_PRIVATE_LEN, SidrRep, SidrReq, SidrStatus};
