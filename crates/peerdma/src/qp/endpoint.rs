//! What two queue pairs tell each other before they connect.

use crate::attr::Mtu;
use crate::error::{Error, Result};
use crate::gid::Gid;
use std::fmt;
use std::str::FromStr;

/// What a peer must know to connect. Prints as text that parses back: `qpn/psn/mtu/gid`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Endpoint {
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// First packet sequence number this side sends, 24 bits.
    pub psn: u32,
    /// Largest packet payload this side takes.
    pub mtu: Mtu,
    /// Address.
    pub gid: Gid,
    /// Local identifier of the port; 0 on RoCE.
    pub lid: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:06x}/{:06x}/{}/{:04x}/{}",
            self.qpn,
            self.psn,
            self.mtu.bytes(),
            self.lid,
            self.gid
        )
    }
}

impl FromStr for Endpoint {
    type Err = Error;
    fn from_str(text: &str) -> Result<Endpoint> {
        let parse = || {
            let mut fields = text.trim().splitn(5, '/');
            let mut number = |radix| u32::from_str_radix(fields.next()?, radix).ok();
            let (qpn, psn, mtu, lid) = (number(16)?, number(16)?, number(10)?, number(16)?);
            let gid = fields.next()?.parse().ok()?;
            let fits = qpn < 1 << 24 && psn < 1 << 24;
            fits.then_some(Endpoint {
                qpn,
                psn,
                mtu: mtu.try_into().ok()?,
                gid,
                lid: lid.try_into().ok()?,
            })
        };
        parse().ok_or_else(|| Error::Endpoint(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_text_and_back() {
        let endpoint = Endpoint {
            qpn: 0x123456,
            psn: 0xabc,
            mtu: Mtu::B1024,
            gid: "192.0.2.1".parse().unwrap(),
            lid: 0,
        };
        let text = endpoint.to_string();
        assert_eq!(text, "123456/000abc/1024/0000/192.0.2.1");
        assert_eq!(text.parse::<Endpoint>().unwrap(), endpoint);
        for bad in [
            "",
            "1/2/3/4/5",
            "1000000/0/1024/0/::1",
            "1/1/1024/0",
            "1/1/1500/0/::1",
            "1/1/1024/10000/::1",
        ] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }
}
