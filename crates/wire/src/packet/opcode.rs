//! BTH opcodes (IBA table 38): the service in the high three bits, the operation below.

/// Transport service an opcode belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// None: congestion notification, between ports rather than queue pairs (IBA A17.9.3).
    Notification,
}

/// What a packet does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A SEND packet; `imm` and `invalidate` say which extra header its last packet carries.
    Send,
    /// An RDMA WRITE packet.
    Write,
    /// An RDMA READ request.
    ReadRequest,
    /// An RDMA READ response packet.
    ReadResponse,
    /// An acknowledge packet.
    Acknowledge,
    /// An atomic acknowledge packet.
    AtomicAcknowledge,
    /// A compare-and-swap request.
    CompareSwap,
    /// A fetch-and-add request.
    FetchAdd,
    /// A request to bring earlier writes to global visibility or persistence (IBA A19).
    Flush,
    /// A write of 8 aligned bytes at once (IBA A19).
    AtomicWrite,
    /// Tells a sender that its packets met congestion (IBA A17.9.3).
    CongestionNotification,
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether a message begins here.
    pub const fn starts(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }
    /// Whether a message ends here.
    pub const fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

/// A decoded BTH opcode. Built only for combinations that the specification defines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opcode {
    /// Transport service.
    pub service: Service,
    /// Operation.
    pub operation: Operation,
    /// Place in the message; `Only` for requests and acknowledges of one packet.
    pub position: Position,
    /// Carries immediate data.
    pub imm: bool,
    /// Carries an invalidate key (IETH).
    pub invalidate: bool,
}

/// Opcode of every byte; built once at compile time, since it is consulted for every packet.
static DECODE: [Option<Opcode>; 256] = {
    let mut table = [None; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = Opcode::decode(byte as u8);
        byte += 1;
    }
    table
};

/// Length of the reserved bytes that end a congestion notification packet.
pub(crate) const RESERVED_LEN: usize = 16;

/// Marks a combination that no opcode byte stands for; no opcode is 0xff (it is of a manufacturer's
/// service).
const UNDEFINED: u8 = 0xff;

/// Opcode byte of every [`Opcode::index`].
static ENCODE: [u8; 2048] = {
    let mut table = [UNDEFINED; 2048];
    let mut byte = 0;
    while byte < 256 {
        if let Some(opcode) = Opcode::decode(byte as u8) {
            table[opcode.index()] = byte as u8;
        }
        byte += 1;
    }
    table
};

/// Length of the headers of every [`Opcode::index`].
static HEADERS_LEN: [u8; 2048] = {
    let mut table = [0; 2048];
    let mut byte = 0;
    while byte < 256 {
        if let Some(opcode) = Opcode::decode(byte as u8) {
            table[opcode.index()] = opcode.sum_of_headers() as u8;
        }
        byte += 1;
    }
    table
};

impl Opcode {
    /// The opcode with these parts, or `None` when the specification defines no such packet.
    pub const fn new(
        service: Service,
        operation: Operation,
        position: Position,
        imm: bool,
        invalidate: bool,
    ) -> Option<Opcode> {
        let opcode = Opcode { service, operation, position, imm, invalidate };
        if ENCODE[opcode.index()] == UNDEFINED { None } else { Some(opcode) }
    }

    /// The opcode that `byte` stands for, or `None` when it is reserved or of a service not carried
    /// here (reliable datagram).
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<Opcode> {
        DECODE[byte as usize]
    }

    /// The byte on the wire.
    ///
    /// # Panics
    /// When the fields form no opcode of the specification; [`Opcode::new`] never gives such a
    /// value.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        let byte = ENCODE[self.index()];
        assert!(byte != UNDEFINED, "the specification defines no such opcode");
        byte
    }

    /// Carries a DETH: every datagram.
    #[inline]
    pub const fn has_deth(self) -> bool {
        matches!(self.service, Service::Ud)
    }

    /// Carries an XRCETH: every XRC request packet (IBA A14).
    #[inline]
    pub const fn has_xrceth(self) -> bool {
        matches!(self.service, Service::Xrc) && self.is_request()
    }

    /// Carries a FETH: a FLUSH request.
    #[inline]
    pub const fn has_feth(self) -> bool {
        matches!(self.operation, Operation::Flush)
    }

    /// Carries a RETH: the first or only packet of an RDMA WRITE, and the requests that name memory
    /// but are no atomics.
    #[inline]
    pub const fn has_reth(self) -> bool {
        match self.operation {
            Operation::Write => self.position.starts(),
            Operation::ReadRequest | Operation::Flush | Operation::AtomicWrite => true,
            _ => false,
        }
    }

    /// Carries an AtomicETH: the atomic requests.
    #[inline]
    pub const fn has_atomic(self) -> bool {
        matches!(self.operation, Operation::CompareSwap | Operation::FetchAdd)
    }

    /// Carries an AETH: acknowledges, and READ responses but for the middle ones.
    #[inline]
    pub const fn has_aeth(self) -> bool {
        match self.operation {
            Operation::Acknowledge | Operation::AtomicAcknowledge => true,
            Operation::ReadResponse => !matches!(self.position, Position::Middle),
            _ => false,
        }
    }

    /// Carries an AtomicAckETH.
    #[inline]
    pub const fn has_atomic_ack(self) -> bool {
        matches!(self.operation, Operation::AtomicAcknowledge)
    }

    /// Carries immediate data.
    #[inline]
    pub const fn has_imm(self) -> bool {
        self.imm
    }

    /// Carries an IETH.
    #[inline]
    pub const fn has_invalidate(self) -> bool {
        self.invalidate
    }

    /// Carries 16 reserved bytes, which end a congestion notification packet.
    #[inline]
    pub const fn has_reserved(self) -> bool {
        matches!(self.operation, Operation::CongestionNotification)
    }

    /// May carry payload. The others end with their headers.
    #[inline]
    pub const fn has_payload(self) -> bool {
        matches!(
            self.operation,
            Operation::Send | Operation::Write | Operation::ReadResponse | Operation::AtomicWrite
        )
    }

    /// Travels from requester to responder.
    #[inline]
    pub const fn is_request(self) -> bool {
        !self.is_response()
    }

    /// Travels from responder to requester.
    #[inline]
    pub const fn is_response(self) -> bool {
        matches!(
            self.operation,
            Operation::ReadResponse | Operation::Acknowledge | Operation::AtomicAcknowledge
        )
    }

    /// Length of all transport headers in bytes, BTH included.
    #[inline]
    pub const fn headers_len(self) -> usize {
        HEADERS_LEN[self.index()] as usize
    }

    const fn sum_of_headers(self) -> usize {
        12 + 8 * self.has_deth() as usize
            + 4 * self.has_xrceth() as usize
            + 4 * self.has_feth() as usize
            + 16 * self.has_reth() as usize
            + 28 * self.has_atomic() as usize
            + 4 * self.has_aeth() as usize
            + 8 * self.has_atomic_ack() as usize
            + 4 * self.imm as usize
            + 4 * self.invalidate as usize
            + RESERVED_LEN * self.has_reserved() as usize
    }

    /// A number below 2048 that no other combination of the fields has.
    #[inline]
    const fn index(self) -> usize {
        self.operation as usize
            | (self.position as usize) << 4
            | (self.service as usize) << 6
            | (self.imm as usize) << 9
            | (self.invalidate as usize) << 10
    }

    const fn decode(byte: u8) -> Option<Opcode> {
        use Operation::*;
        use Position::*;
        let service = match byte >> 5 {
            0b000 => Service::Rc,
            0b001 => Service::Uc,
            0b011 => Service::Ud,
            0b101 => Service::Xrc,
            0b100 => Service::Notification,
            _ => return None,
        };
        let (operation, position, imm, invalidate) = match byte & 0x1f {
            0x01 if matches!(service, Service::Notification) => {
                (CongestionNotification, Only, false, false)
            }
            0x00 => (Send, First, false, false),
            0x01 => (Send, Middle, false, false),
            0x02 => (Send, Last, false, false),
            0x03 => (Send, Last, true, false),
            0x04 => (Send, Only, false, false),
            0x05 => (Send, Only, true, false),
            0x06 => (Write, First, false, false),
            0x07 => (Write, Middle, false, false),
            0x08 => (Write, Last, false, false),
            0x09 => (Write, Last, true, false),
            0x0a => (Write, Only, false, false),
            0x0b => (Write, Only, true, false),
            0x0c => (ReadRequest, Only, false, false),
            0x0d => (ReadResponse, First, false, false),
            0x0e => (ReadResponse, Middle, false, false),
            0x0f => (ReadResponse, Last, false, false),
            0x10 => (ReadResponse, Only, false, false),
            0x11 => (Acknowledge, Only, false, false),
            0x12 => (AtomicAcknowledge, Only, false, false),
            0x13 => (CompareSwap, Only, false, false),
            0x14 => (FetchAdd, Only, false, false),
            0x16 => (Send, Last, false, true),
            0x17 => (Send, Only, false, true),
            0x1c => (Flush, Only, false, false),
            0x1d => (AtomicWrite, Only, false, false),
            _ => return None,
        };
        let defined = match service {
            Service::Rc | Service::Xrc => true,
            Service::Uc => matches!(operation, Send | Write) && !invalidate,
            Service::Ud => matches!(operation, Send) && matches!(position, Only) && !invalidate,
            Service::Notification => matches!(operation, CongestionNotification),
        };
        if !defined {
            return None;
        }
        Some(Opcode { service, operation, position, imm, invalidate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_opcodes_are_inverse() {
        let mut defined = 0;
        for byte in 0..=u8::MAX {
            let Some(opcode) = Opcode::from_byte(byte) else { continue };
            defined += 1;
            assert_eq!(opcode.to_byte(), byte);
            let Opcode { service, operation, position, imm, invalidate } = opcode;
            assert_eq!(Opcode::new(service, operation, position, imm, invalidate), Some(opcode));
            assert!(opcode.headers_len() <= crate::packet::MAX_HEADERS_LEN);
        }
        // 25 of RC and of XRC, 12 of UC, 2 of UD, congestion notification.
        assert_eq!(defined, 25 + 25 + 12 + 2 + 1);
    }

    #[test]
    fn combinations_that_are_not_defined_are_refused() {
        use {Operation::*, Position::*, Service::*};
        for (service, operation, position, imm, invalidate) in [
            (Rc, Send, First, true, false),
            (Rc, Send, Only, true, true),
            (Rc, Write, Only, false, true),
            (Rc, ReadRequest, First, false, false),
            (Uc, Send, Only, false, true),
            (Uc, ReadRequest, Only, false, false),
            (Uc, AtomicWrite, Only, false, false),
            (Rc, Flush, First, false, false),
            (Ud, Send, First, false, false),
            (Ud, Write, Only, false, false),
            (Rc, CongestionNotification, Only, false, false),
            (Notification, Send, Middle, false, false),
        ] {
            assert_eq!(Opcode::new(service, operation, position, imm, invalidate), None);
        }
    }

    #[test]
    fn headers_are_as_long_as_the_specification_says() {
        for (byte, len) in [
            (0x00, 12), // RC SEND first
            (0x05, 16), // RC SEND only with immediate
            (0x0b, 32), // RC WRITE only with immediate
            (0x0c, 28), // RC READ request
            (0x0d, 16), // RC READ response first
            (0x0e, 12), // RC READ response middle
            (0x11, 16), // RC acknowledge
            (0x12, 24), // RC atomic acknowledge
            (0x13, 40), // RC compare and swap
            (0x17, 16), // RC SEND only with invalidate
            (0x1c, 32), // RC FLUSH
            (0x1d, 28), // RC ATOMIC WRITE
            (0x64, 20), // UD SEND only
            (0x65, 24), // UD SEND only with immediate
            (0x81, 28), // congestion notification
            (0xa1, 16), // XRC SEND middle
            (0xab, 36), // XRC WRITE only with immediate
            (0xb1, 16), // XRC acknowledge
            (0xb4, 44), // XRC fetch and add
        ] {
            let opcode = Opcode::from_byte(byte).unwrap();
            assert_eq!(opcode.headers_len(), len, "opcode {byte:#x}");
        }
    }
}
