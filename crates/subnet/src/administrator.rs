//! Subnet administration (IBA 15): requests at QP 1 of the manager's LID, and their answers.

use crate::Mad;
use crate::bytes::{BAD_ATTRIBUTE, BAD_METHOD, BAD_VERSION, be16, be32, be64, header, method, put};
use crate::mask::Template;
use crate::rmpp::{self, Transfers};
use crate::view::{Groups, View};
use crate::{class_port_info, groups};

/// The class (IBA 13.4.4), and its version.
const CLASS: u8 = 0x03;
const VERSION: u8 = 2;

/// The header behind the common one and that of RMPP (IBA 15.2.1.1).
const RMPP_AT: usize = 24;
const KEY_AT: usize = 36;
const OFFSET_AT: usize = 44;
const MASK_AT: usize = 48;
const DATA_AT: usize = 56;
/// The longest table, in bytes.
const MOST_BYTES: usize = 1 << 20;

/// Status of an answer.
pub(crate) type Status = u16;

/// Status of this class (IBA 15.2.2).
pub(crate) mod status {
    pub(crate) const NO_RESOURCES: u16 = 0x0100;
    pub(crate) const INVALID: u16 = 0x0200;
    pub(crate) const NO_RECORDS: u16 = 0x0300;
    pub(crate) const TOO_MANY_RECORDS: u16 = 0x0400;
    pub(crate) const INVALID_GID: u16 = 0x0500;
    pub(crate) const TOO_FEW_COMPONENTS: u16 = 0x0600;
    pub(crate) const DENIED: u16 = 0x0700;
}

mod attribute {
    pub(super) const CLASS_PORT_INFO: u16 = 0x01;
    pub(super) const NODE: u16 = 0x11;
    pub(super) const PORT_INFO: u16 = 0x12;
    pub(super) const SWITCH_INFO: u16 = 0x14;
    pub(super) const SM_INFO: u16 = 0x18;
    pub(super) const LINK: u16 = 0x20;
    pub(super) const PATH: u16 = 0x35;
    pub(super) const MULTICAST_MEMBER: u16 = 0x38;
}

/// Answers the requests of one port.
#[derive(Default)]
pub struct Administrator {
    transfers: Transfers,
    /// Groups made without a name.
    made: u32,
}

/// What a request gets.
enum Answer {
    /// One record.
    One(Vec<u8>),
    /// Records, in as many datagrams as they take.
    Table(Vec<Vec<u8>>),
}

impl Administrator {
    /// The datagrams that answer one from the port at `source`. Requests of other ports than the own one, and what is no
    /// request, get none.
    pub fn hear(
        &mut self,
        view: &View,
        groups: &mut dyn Groups,
        source: u16,
        mad: &Mad,
    ) -> Vec<Mad> {
        if mad[header::CLASS] != CLASS || source != view.own {
            return Vec::new();
        }
        if rmpp::is_about_transfer(mad) {
            return self.transfers.hear(source, mad);
        }
        let asked = mad[header::METHOD];
        if asked & method::RESPONSE != 0 || asked == method::REPORT {
            return Vec::new();
        }
        let mut head = [0; 256];
        put(&mut head, 0, &mad[..DATA_AT]);
        put(&mut head, RMPP_AT, &[0; 12]);
        head[header::METHOD] = asked | method::RESPONSE;
        let answer = if mad[header::CLASS_VERSION] == VERSION {
            self.answer(view, groups, mad)
        } else {
            Err(BAD_VERSION)
        };
        match answer {
            Ok(Answer::One(record)) => {
                put(&mut head, header::STATUS, &[0; 2]);
                put(&mut head, OFFSET_AT, &eights(record.len()).to_be_bytes());
                put(&mut head, DATA_AT, &record);
                vec![head]
            }
            Ok(Answer::Table(records)) => {
                let step = records.first().map_or(0, |record| eights(record.len()));
                put(&mut head, header::STATUS, &[0; 2]);
                put(&mut head, OFFSET_AT, &step.to_be_bytes());
                let data = records.into_iter().flat_map(|mut record| {
                    record.resize(usize::from(step) * 8, 0);
                    record
                });
                self.transfers.begin(source, head, data.collect())
            }
            Err(status) => {
                put(&mut head, header::STATUS, &status.to_be_bytes());
                vec![head]
            }
        }
    }

    fn answer(
        &mut self,
        view: &View,
        groups: &mut dyn Groups,
        mad: &Mad,
    ) -> Result<Answer, Status> {
        let wanted = Template { mask: be64(mad, MASK_AT), record: &mad[DATA_AT..] };
        let number = be16(mad, header::ATTRIBUTE);
        match (mad[header::METHOD], number) {
            (method::GET, attribute::CLASS_PORT_INFO) => Ok(Answer::One(class_port_info::record())),
            (method::SET, attribute::MULTICAST_MEMBER) => {
                self.made = self.made.wrapping_add(1);
                groups::join(view, groups, &wanted, self.made).map(Answer::One)
            }
            (method::DELETE, attribute::MULTICAST_MEMBER) => {
                groups::leave(view, groups, &wanted).map(Answer::One)
            }
            (method::GET, _) => {
                let mut records = records(view, &wanted, mad)?;
                match (records.pop(), records.is_empty()) {
                    (None, _) => Err(status::NO_RECORDS),
                    (Some(record), true) => Ok(Answer::One(record)),
                    // Of equal paths any will do.
                    (Some(record), false) if number == attribute::PATH => Ok(Answer::One(record)),
                    (Some(_), false) => Err(status::TOO_MANY_RECORDS),
                }
            }
            (method::GET_TABLE, _) => {
                let records = records(view, &wanted, mad)?;
                if records.iter().map(|record| record.len() + 8).sum::<usize>() > MOST_BYTES {
                    return Err(status::NO_RESOURCES);
                }
                Ok(Answer::Table(records))
            }
            (method::SET | method::DELETE, _) => Err(BAD_ATTRIBUTE),
            _ => Err(BAD_METHOD),
        }
    }
}

fn records(view: &View, wanted: &Template<'_>, mad: &Mad) -> Result<Vec<Vec<u8>>, Status> {
    Ok(match be16(mad, header::ATTRIBUTE) {
        attribute::NODE => view.node_records(wanted),
        attribute::PORT_INFO => view.port_records(wanted, be32(mad, header::MODIFIER)),
        attribute::SWITCH_INFO => view.switch_records(wanted),
        attribute::SM_INFO => view.sm_records(wanted),
        attribute::LINK => view.link_records(wanted),
        attribute::PATH => view.paths(wanted),
        attribute::MULTICAST_MEMBER => view.group_records(wanted, be64(mad, KEY_AT) != 0),
        _ => return Err(BAD_ATTRIBUTE),
    })
}

/// Length in units of 8 bytes.
fn eights(bytes: usize) -> u16 {
    bytes.div_ceil(8) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;
    use hca::Membership;

    struct Nobody;

    impl Groups for Nobody {
        fn join(&mut self, _: Membership) -> Result<(), crate::Refused> {
            Err(crate::Refused)
        }

        fn leave(&mut self, _: [u8; 16]) {}
    }

    fn ask(method: u8, number: u16) -> Mad {
        let mut mad = [0; 256];
        mad[..4].copy_from_slice(&[1, CLASS, VERSION, method]);
        put(&mut mad, header::ATTRIBUTE, &number.to_be_bytes());
        mad
    }

    fn status_of(method: u8, number: u16) -> u16 {
        let mut administrator = Administrator::default();
        let answer = administrator.hear(&view(), &mut Nobody, 7, &ask(method, number));
        assert_eq!(answer[0][header::METHOD], method | method::RESPONSE);
        be16(&answer[0], header::STATUS)
    }

    #[test]
    fn what_is_not_there_gets_the_status_for_it() {
        assert_eq!(status_of(method::GET, attribute::CLASS_PORT_INFO), 0);
        assert_eq!(status_of(method::GET, attribute::NODE), status::TOO_MANY_RECORDS);
        assert_eq!(status_of(method::GET, attribute::SM_INFO), 0);
        // ServiceRecord, InformInfo.
        assert_eq!(status_of(method::SET, 0x31), BAD_ATTRIBUTE);
        assert_eq!(status_of(method::SET, 0x03), BAD_ATTRIBUTE);
        assert_eq!(status_of(0x77, attribute::NODE), BAD_METHOD);
        let mut old = ask(method::GET, attribute::NODE);
        old[header::CLASS_VERSION] = 1;
        let answer = Administrator::default().hear(&view(), &mut Nobody, 7, &old);
        assert_eq!(be16(&answer[0], header::STATUS), BAD_VERSION);
    }

    #[test]
    fn a_table_has_every_record_at_its_step() {
        let mut administrator = Administrator::default();
        let asked = ask(method::GET_TABLE, attribute::LINK);
        let answer = administrator.hear(&view(), &mut Nobody, 7, &asked);
        assert_eq!((answer.len(), be16(&answer[0], OFFSET_AT)), (1, 1));
        assert_eq!(be16(&answer[0], DATA_AT + 8 * 2), 9, "the other port's cable");
        assert!(administrator.hear(&view(), &mut Nobody, 9, &asked).is_empty(), "not its own port");
    }

    #[test]
    fn nothing_of_any_bytes_panics() {
        let mut administrator = Administrator::default();
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..20_000 {
            let mut mad = [0; 256];
            for byte in &mut mad {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (state >> 33) as u8;
            }
            mad[header::CLASS] = [CLASS, 1, 0x81][mad[0] as usize % 3];
            mad[header::CLASS_VERSION] = VERSION;
            mad[header::METHOD] = [1, 2, 0x12, 0x15][mad[2] as usize % 4];
            mad[header::ATTRIBUTE] = 0;
            mad[header::ATTRIBUTE + 1] =
                [0x11, 0x12, 0x15, 0x18, 0x20, 0x35, 0x38, 0x19][mad[4] as usize % 8];
            mad[header::HOP_POINTER] = 1;
            administrator.hear(&view(), &mut Nobody, 7, &mad);
            let view = view();
            view.answer_smp(7, true, &mad);
            view.answer_smp(7, false, &mad);
        }
    }
}
