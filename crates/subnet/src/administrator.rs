//! Subnet administration (IBA 15): requests at QP 1 of the manager's LID, and their answers.

use crate::Mad;
use crate::groups;
use crate::rmpp::Transfers;
use crate::view::{Groups, View};
use std::time::Instant;
use wire::field::{be16, be32, be64, put};
use wire::mad::sa::{self, ClassPortInfo, Template, VERSION, attribute};
use wire::mad::{class, field, method, rmpp, status};

/// The longest table, in bytes.
const MOST_BYTES: usize = 1 << 20;
/// An answer comes within 4.096 µs * 2^18, about a second.
const RESPONSE_TIME: u8 = 18;

/// Status of an answer.
pub(crate) type Status = u16;

/// Answers the requests of one port.
#[derive(Default)]
pub struct Administrator {
    transfers: Transfers,
    /// Groups made without a name.
    made: u32,
}

/// Whether a datagram asks to make a port a member of a group.
pub(crate) fn asks_to_join(mad: &Mad) -> bool {
    mad[field::CLASS] == class::SUBNET_ADMINISTRATION
        && mad[field::METHOD] == method::SET
        && be16(mad, field::ATTRIBUTE_ID) == attribute::MULTICAST_MEMBER
}

/// What a request gets.
enum Answer {
    /// One record.
    One(Vec<u8>),
    /// Records, in as many datagrams as they take.
    Table(Vec<Vec<u8>>),
}

impl Administrator {
    /// The datagrams that answer one from the port at `source`. Requests of other ports than the
    /// own one, and what is no request, get none.
    pub fn hear(
        &mut self,
        view: &View,
        groups: &mut dyn Groups,
        source: u16,
        mad: &Mad,
        now: Instant,
    ) -> Vec<Mad> {
        if mad[field::CLASS] != class::SUBNET_ADMINISTRATION || source != view.own {
            return Vec::new();
        }
        if let Some(header) = rmpp::Header::parse(mad)
            && header.kind != rmpp::kind::DATA
        {
            let transaction = be64(mad, field::TRANSACTION_ID);
            return self.transfers.hear(source, transaction, &header, now);
        }
        let asked = mad[field::METHOD];
        if asked & method::RESPONSE != 0 || asked == method::REPORT {
            return Vec::new();
        }
        let answer = if mad[field::CLASS_VERSION] == VERSION {
            self.answer(view, groups, mad)
        } else {
            Err(status::BAD_VERSION)
        };
        let mut head = head_of(mad);
        match answer {
            Ok(Answer::One(record)) => {
                put(&mut head, sa::field::ATTRIBUTE_OFFSET, &eights(record.len()).to_be_bytes());
                put(&mut head, sa::field::DATA, &record);
                vec![head]
            }
            Ok(Answer::Table(records)) => {
                let step = records.first().map_or(0, |record| eights(record.len()));
                put(&mut head, sa::field::ATTRIBUTE_OFFSET, &step.to_be_bytes());
                let data = records.into_iter().flat_map(|mut record| {
                    record.resize(usize::from(step) * 8, 0);
                    record
                });
                self.transfers.begin(source, head, data.collect(), now)
            }
            Err(status) => {
                put(&mut head, field::STATUS, &status.to_be_bytes());
                vec![head]
            }
        }
    }

    /// When [`Administrator::on_timeout`] is wanted.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.transfers.next_deadline()
    }

    /// The datagrams that are sent now because no acknowledge of them came, each with the port that
    /// it is for.
    pub fn on_timeout(&mut self, now: Instant) -> Vec<(u16, Mad)> {
        self.transfers.on_timeout(now)
    }

    fn answer(
        &mut self,
        view: &View,
        groups: &mut dyn Groups,
        mad: &Mad,
    ) -> Result<Answer, Status> {
        let wanted =
            Template { mask: be64(mad, sa::field::COMPONENT_MASK), record: &mad[sa::field::DATA] };
        let number = be16(mad, field::ATTRIBUTE_ID);
        match (mad[field::METHOD], number) {
            (method::GET, attribute::CLASS_PORT_INFO) => Ok(Answer::One(class_port_info())),
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
                    (None, _) => Err(sa::status::NO_RECORDS),
                    (Some(record), true) => Ok(Answer::One(record)),
                    // Of equal paths any will do.
                    (Some(record), false) if number == attribute::PATH => Ok(Answer::One(record)),
                    (Some(_), false) => Err(sa::status::TOO_MANY_RECORDS),
                }
            }
            (method::GET_TABLE, _) => {
                let records = records(view, &wanted, mad)?;
                if records.iter().map(|record| record.len() + 8).sum::<usize>() > MOST_BYTES {
                    return Err(sa::status::NO_RESOURCES);
                }
                Ok(Answer::Table(records))
            }
            (method::SET | method::DELETE, _) => Err(status::BAD_ATTRIBUTE),
            _ => Err(status::BAD_METHOD),
        }
    }
}

/// The answer to a request before it says anything: the request's headers, but for the method, the
/// status and what concerns a transfer.
fn head_of(mad: &Mad) -> Mad {
    let mut head = [0; wire::mad::MAD_LEN];
    let headers = 0..sa::field::DATA.start;
    put(&mut head, headers.clone(), &mad[headers]);
    put(&mut head, field::STATUS, &[0; 2]);
    head[rmpp::field::WHOLE].fill(0);
    head[field::METHOD] = mad[field::METHOD] | method::RESPONSE;
    head
}

/// What this administrator can do.
fn class_port_info() -> Vec<u8> {
    let info = ClassPortInfo {
        capabilities: ClassPortInfo::MULTICAST,
        capabilities_2: ClassPortInfo::SEND_ONLY_MEMBERS,
        response_time: RESPONSE_TIME,
    };
    info.emit().to_vec()
}

fn records(view: &View, wanted: &Template<'_>, mad: &Mad) -> Result<Vec<Vec<u8>>, Status> {
    let trusted = be64(mad, sa::field::SM_KEY) != 0;
    Ok(match be16(mad, field::ATTRIBUTE_ID) {
        attribute::NODE => view.node_records(wanted),
        attribute::PORT_INFO => view.port_records(wanted, be32(mad, field::ATTRIBUTE_MODIFIER)),
        attribute::SWITCH_INFO => view.switch_records(wanted),
        attribute::SM_INFO => view.sm_records(wanted),
        attribute::LINK => view.link_records(wanted),
        attribute::PATH => view.paths(wanted),
        attribute::MULTICAST_MEMBER => view.group_records(wanted, trusted),
        _ => return Err(status::BAD_ATTRIBUTE),
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
    use wire::mad::{Header, smp};

    struct Nobody;

    impl Groups for Nobody {
        fn join(&mut self, _: Membership) -> Result<(), crate::Refused> {
            Err(crate::Refused)
        }

        fn leave(&mut self, _: [u8; 16]) {}
    }

    fn ask(method: u8, number: u16) -> Mad {
        let header = Header {
            class: class::SUBNET_ADMINISTRATION,
            class_version: VERSION,
            method,
            attribute: number,
            ..Header::default()
        };
        header.alone()
    }

    fn status_of(method: u8, number: u16) -> u16 {
        let mut administrator = Administrator::default();
        let answer =
            administrator.hear(&view(), &mut Nobody, 7, &ask(method, number), Instant::now());
        assert_eq!(answer[0][field::METHOD], method | method::RESPONSE);
        be16(&answer[0], field::STATUS)
    }

    #[test]
    fn what_is_not_there_gets_the_status_for_it() {
        assert_eq!(status_of(method::GET, attribute::CLASS_PORT_INFO), 0);
        assert_eq!(status_of(method::GET, attribute::NODE), sa::status::TOO_MANY_RECORDS);
        assert_eq!(status_of(method::GET, attribute::SM_INFO), 0);
        // ServiceRecord, InformInfo.
        assert_eq!(status_of(method::SET, 0x31), status::BAD_ATTRIBUTE);
        assert_eq!(status_of(method::SET, 0x03), status::BAD_ATTRIBUTE);
        assert_eq!(status_of(0x77, attribute::NODE), status::BAD_METHOD);
        let mut old = ask(method::GET, attribute::NODE);
        old[field::CLASS_VERSION] = 1;
        let answer = Administrator::default().hear(&view(), &mut Nobody, 7, &old, Instant::now());
        assert_eq!(be16(&answer[0], field::STATUS), status::BAD_VERSION);
    }

    #[test]
    fn a_table_has_every_record_at_its_step() {
        let mut administrator = Administrator::default();
        let asked = ask(method::GET_TABLE, attribute::LINK);
        let answer = administrator.hear(&view(), &mut Nobody, 7, &asked, Instant::now());
        assert_eq!((answer.len(), be16(&answer[0], sa::field::ATTRIBUTE_OFFSET)), (1, 1));
        assert_eq!(
            sa::LinkRecord::parse(&answer[0][sa::field::DATA][16..]).from_lid,
            9,
            "the other port's cable"
        );
        assert!(
            administrator.hear(&view(), &mut Nobody, 9, &asked, Instant::now()).is_empty(),
            "not its own port"
        );
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
            mad[field::CLASS] = [class::SUBNET_ADMINISTRATION, 1, 0x81][mad[0] as usize % 3];
            mad[field::CLASS_VERSION] = VERSION;
            mad[field::METHOD] = [1, 2, 0x12, 0x15][mad[2] as usize % 4];
            let number = [0x11, 0x12, 0x15, 0x18, 0x20, 0x35, 0x38, 0x19][mad[4] as usize % 8];
            put(&mut mad, field::ATTRIBUTE_ID, &[0, number]);
            mad[smp::field::HOP_POINTER] = 1;
            administrator.hear(&view(), &mut Nobody, 7, &mad, Instant::now());
            let view = view();
            view.answer_smp(7, true, &mad);
            view.answer_smp(7, false, &mad);
        }
    }
}
