//! Packets made by hand.

use super::Packet;
use wire::{
    Aeth, AtomicEth, Bth, Headers, NakCode, Opcode, Operation, Position, Psn, Reth, Service,
    Syndrome,
};

/// A packet of `operation` with no payload and no extension headers; often not a legal one.
pub fn packet(service: Service, operation: Operation, position: Position, psn: u32) -> Packet {
    let headers = Headers::new(Bth {
        opcode: Opcode { service, operation, position, imm: false, invalidate: false },
        solicited: false,
        migrated: true,
        pad: 0,
        pkey: 0xffff,
        fecn: false,
        becn: false,
        dest_qp: 11,
        ack_req: true,
        psn: Psn::new(psn),
    });
    Packet { headers, payload: Vec::new() }
}

impl Packet {
    pub fn payload(mut self, len: usize) -> Packet {
        self.payload = vec![0xa5; len];
        self.headers.bth.pad = (len.wrapping_neg() & 3) as u8;
        self
    }
    pub fn reth(mut self, va: u64, rkey: u32, len: u32) -> Packet {
        self.headers.reth = Some(Reth { va, rkey, len });
        self
    }
    pub fn imm(mut self, imm: u32) -> Packet {
        self.headers.bth.opcode.imm = true;
        self.headers.imm = Some(imm);
        self
    }
    pub fn invalidate(mut self, key: u32) -> Packet {
        self.headers.bth.opcode.invalidate = true;
        self.headers.invalidate = Some(key);
        self
    }
    pub fn no_ack_req(mut self) -> Packet {
        self.headers.bth.ack_req = false;
        self
    }
    pub fn psn(&self) -> u32 {
        self.headers.bth.psn.get()
    }
    pub fn operation(&self) -> Operation {
        self.headers.bth.opcode.operation
    }
    pub fn position(&self) -> Position {
        self.headers.bth.opcode.position
    }
    /// The NAK code, if it is a NAK.
    pub fn nak(&self) -> Option<NakCode> {
        match self.headers.aeth?.syndrome {
            Syndrome::Nak(code) => Some(code),
            _ => None,
        }
    }
    /// Whether it is a plain acknowledge.
    pub fn is_ack(&self) -> bool {
        self.operation() == Operation::Acknowledge
            && matches!(self.headers.aeth, Some(Aeth { syndrome: Syndrome::Ack(_), .. }))
    }
    pub fn msn(&self) -> u32 {
        self.headers.aeth.expect("an AETH").msn
    }
}

/// An RC SEND packet.
pub fn send(position: Position, psn: u32, len: usize) -> Packet {
    packet(Service::Rc, Operation::Send, position, psn).payload(len)
}

/// An RC RDMA WRITE packet; its RETH is added where it belongs.
pub fn write(position: Position, psn: u32, len: usize) -> Packet {
    packet(Service::Rc, Operation::Write, position, psn).payload(len)
}

/// An RC RDMA READ request.
pub fn read(psn: u32, va: u64, rkey: u32, len: u32) -> Packet {
    packet(Service::Rc, Operation::ReadRequest, Position::Only, psn).reth(va, rkey, len)
}

/// An RC fetch-and-add of 1.
pub fn fetch_add(psn: u32, va: u64, rkey: u32) -> Packet {
    let mut packet = packet(Service::Rc, Operation::FetchAdd, Position::Only, psn);
    packet.headers.atomic = Some(AtomicEth { va, rkey, swap_or_add: 1, compare: 0 });
    packet
}

/// An RC acknowledge.
pub fn acknowledge(psn: u32, syndrome: Syndrome) -> Packet {
    let mut packet = packet(Service::Rc, Operation::Acknowledge, Position::Only, psn);
    packet.headers.aeth = Some(Aeth { syndrome, msn: 0 });
    packet
}

/// A positive acknowledge.
pub fn ack(psn: u32) -> Packet {
    acknowledge(psn, Syndrome::Ack(31))
}

/// A negative one.
pub fn nak(psn: u32, code: NakCode) -> Packet {
    acknowledge(psn, Syndrome::Nak(code))
}

/// An RC READ response.
pub fn read_response(position: Position, psn: u32, payload: Vec<u8>) -> Packet {
    let mut packet = packet(Service::Rc, Operation::ReadResponse, position, psn);
    if position != Position::Middle {
        packet.headers.aeth = Some(Aeth { syndrome: Syndrome::Ack(31), msn: 0 });
    }
    packet.payload = payload;
    packet
}
