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
