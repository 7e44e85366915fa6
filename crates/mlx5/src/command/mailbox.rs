//! The command queue: entries of 64 bytes, mailboxes of 576, tokens and signatures (PRM "Command
//! Queue Entry", "Command Interface Mailbox"; `struct mlx5_cmd_layout`,
//! `struct mlx5_cmd_prot_block`).
//!
//! The first 16 bytes of a command and of its answer are in the entry, the others in chains of
//! mailboxes. Chains come from the guest: each block's number and token are checked, and lengths
//! are limited, so a chain that runs in a circle ends.

use crate::layout::bits::{be32, be64, put};
use crate::layout::head::Delivery;
use std::sync::Arc;
use umem::DmaSpace;

/// Entries of the queue, as a logarithm.
pub(crate) const LOG_ENTRIES: u32 = 5;
/// Bytes of an entry, as a logarithm.
pub(crate) const LOG_STRIDE: u32 = 6;
/// Longest command or answer: a list of 2^16 pages behind a context fits.
pub(crate) const MAX_LEN: usize = 1 << 20;

const ENTRY_LEN: usize = 64;
/// Bytes of a command or answer that stand in the entry itself.
const INLINE_LEN: usize = 16;
const TRANSPORT_PCI: u8 = 7;
const HARDWARE_OWNS: u8 = 1;

/// Bytes of a mailbox that carry data, before its control words.
const BLOCK_DATA_LEN: usize = 512;
/// The length of a mailbox.
const BLOCK_LEN: usize = 576;
const BLOCK_NEXT: usize = 560;
const BLOCK_NUMBER: usize = 568;
const BLOCK_TOKEN: usize = 573;
const BLOCK_CONTROL_SIGNATURE: usize = 574;
const BLOCK_SIGNATURE: usize = 575;
/// Where the signed control words begin.
const BLOCK_CONTROL: usize = BLOCK_DATA_LEN;

/// The queue in guest memory.
pub(crate) struct CommandQueue {
    memory: Arc<dyn DmaSpace>,
    address: u64,
}

/// A command as it was fetched.
#[derive(Debug)]
pub(crate) struct Fetched {
    index: u32,
    entry: [u8; ENTRY_LEN],
    /// All bytes of it.
    pub(crate) input: Vec<u8>,
}

impl Fetched {
    fn token(&self) -> u8 {
        self.entry[60]
    }

    /// Bytes that the answer may have.
    fn output_len(&self) -> usize {
        be32(&self.entry, 56) as usize
    }
}

impl CommandQueue {
    pub(crate) fn new(memory: Arc<dyn DmaSpace>, address: u64) -> CommandQueue {
        CommandQueue { memory, address }
    }

    fn entry_address(&self, index: u32) -> Option<u64> {
        self.address.checked_add(u64::from(index) << LOG_STRIDE)
    }

    /// Fetches the command in entry `index`; `None` when there is none: the entry is not ours, or
    /// not in memory.
    ///
    /// # Errors
    /// It cannot be delivered, and the driver has heard so.
    pub(crate) fn fetch(&self, index: u32) -> Result<Option<Fetched>, Delivery> {
        let mut entry = [0; ENTRY_LEN];
        let address = self.entry_address(index);
        let read = address.is_some_and(|at| self.memory.read(at, &mut entry).is_ok());
        if !read || index >> LOG_ENTRIES != 0 || entry[63] & HARDWARE_OWNS == 0 {
            return Ok(None);
        }
        match self.input(&entry) {
            Ok(input) => Ok(Some(Fetched { index, entry, input })),
            Err(delivery) => {
                self.give_back(index, &mut entry, delivery as u8);
                Err(delivery)
            }
        }
    }

    fn input(&self, entry: &[u8; ENTRY_LEN]) -> Result<Vec<u8>, Delivery> {
        if entry[0] != TRANSPORT_PCI {
            return Err(Delivery::Descriptor);
        }
        if xor(entry) != 0xff {
            return Err(Delivery::Signature);
        }
        let len = be32(entry, 4) as usize;
        if !(8..=MAX_LEN).contains(&len) {
            return Err(Delivery::InputLength);
        }
        if !(8..=MAX_LEN).contains(&(be32(entry, 56) as usize)) {
            return Err(Delivery::OutputLength);
        }
        let mut input = entry[16..16 + len.min(INLINE_LEN)].to_vec();
        let mut chain = Chain::new(&*self.memory, be64(entry, 8), entry[60]);
        while input.len() < len {
            let (_, block) = chain.next(Delivery::InputPointer)?;
            let more = (len - input.len()).min(BLOCK_DATA_LEN);
            input.extend_from_slice(&block[..more]);
        }
        Ok(input)
    }

    /// Answers a command. `output` is cut to the room that the driver offered, or fills it up with
    /// zeros.
    pub(crate) fn complete(&self, mut command: Fetched, mut output: Vec<u8>) {
        output.resize(command.output_len(), 0);
        let delivery = self.place(&command, &output).map_or_else(|delivery| delivery as u8, |()| 0);
        let inline = output.len().min(INLINE_LEN);
        command.entry[32..48].fill(0);
        put(&mut command.entry, 32, &output[..inline]);
        self.give_back(command.index, &mut command.entry, delivery);
    }

    /// Puts what does not fit the entry into the answer's mailboxes.
    fn place(&self, command: &Fetched, output: &[u8]) -> Result<(), Delivery> {
        let rest = output.get(INLINE_LEN..).unwrap_or_default();
        let mut chain = Chain::new(&*self.memory, be64(&command.entry, 48), command.token());
        chain.check_token = false;
        for piece in rest.chunks(BLOCK_DATA_LEN) {
            let (address, mut block) = chain.next(Delivery::OutputPointer)?;
            block[..BLOCK_DATA_LEN].fill(0);
            put(&mut block, 0, piece);
            block[BLOCK_TOKEN] = command.token();
            sign_block(&mut block);
            self.memory.write(address, &block).map_err(|_| Delivery::OutputPointer)?;
        }
        Ok(())
    }

    /// The entry is the driver's again: its last byte, which says so, is written last.
    fn give_back(&self, index: u32, entry: &mut [u8; ENTRY_LEN], delivery: u8) {
        entry[63] = delivery << 1;
        entry[61] = 0;
        entry[61] = !xor(entry);
        if let Some(address) = self.entry_address(index) {
            // Whoever gave an address that is no memory learns of no answer.
            let _ = self.memory.write(address, entry);
        }
    }
}

/// A walk along a chain of mailboxes.
struct Chain<'a> {
    memory: &'a dyn DmaSpace,
    next: u64,
    number: u32,
    token: u8,
    /// Set for a command's mailboxes; those of an answer get their token here.
    check_token: bool,
}

impl<'a> Chain<'a> {
    fn new(memory: &'a dyn DmaSpace, first: u64, token: u8) -> Chain<'a> {
        Chain { memory, next: first, number: 0, token, check_token: true }
    }

    /// The next block and its address; `lost` where there is none.
    fn next(&mut self, lost: Delivery) -> Result<(u64, [u8; BLOCK_LEN]), Delivery> {
        let address = self.next;
        let mut block = [0; BLOCK_LEN];
        if address == 0 || !address.is_multiple_of(BLOCK_DATA_LEN as u64) {
            return Err(lost);
        }
        self.memory.read(address, &mut block).map_err(|_| lost)?;
        if be32(&block, BLOCK_NUMBER) != self.number {
            return Err(Delivery::BlockNumber);
        }
        if self.check_token && block[BLOCK_TOKEN] != self.token {
            return Err(Delivery::Token);
        }
        self.number += 1;
        self.next = be64(&block, BLOCK_NEXT);
        Ok((address, block))
    }
}

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum ^ byte)
}

fn sign_block(block: &mut [u8; BLOCK_LEN]) {
    block[BLOCK_CONTROL_SIGNATURE] = 0;
    block[BLOCK_CONTROL_SIGNATURE] = !xor(&block[BLOCK_CONTROL..BLOCK_SIGNATURE]);
    block[BLOCK_SIGNATURE] = 0;
    block[BLOCK_SIGNATURE] = !xor(block);
}
