//! Targets of the crate `vfio-user`.

use vfio_user::protocol::{Body, HEADER_LEN, Header, MAX_MESSAGE, Request, command};

/// A message from a client: its header, and what follows.
pub fn message(data: &[u8]) {
    let Some((header, body)) = data.split_first_chunk::<HEADER_LEN>() else { return };
    let Ok(header) = Header::parse(header) else { return };
    assert!((HEADER_LEN..=MAX_MESSAGE).contains(&(header.size as usize)));
    assert_eq!(Header::parse(&header.bytes()), Ok(header));
    match Request::parse(header.command, body) {
        Ok(Request::RegionWrite { data, .. }) => assert!(data.len() <= body.len()),
        Ok(Request::RegionRead { count, .. }) => assert!(count as usize <= MAX_MESSAGE),
        Ok(Request::Version { capabilities, .. }) => assert!(capabilities.len() < body.len()),
        _ => {}
    }
}

/// One message of each command.
pub fn message_seeds() -> Vec<Vec<u8>> {
    let body = Body::default().u64(32).u64(3).u64(1 << 32).u64(1 << 20).bytes(b"{}\0").0;
    let commands = command::VERSION..=command::DEVICE_RESET;
    let message = |command| {
        let size = (HEADER_LEN + body.len()) as u32;
        let header = Header { id: 7, command, size, flags: 0, error: 0 };
        [&header.bytes()[..], &body].concat()
    };
    commands.map(message).collect()
}
