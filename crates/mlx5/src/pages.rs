//! Pages that a driver lends the firmware (`QUERY_PAGES`, `MANAGE_PAGES`): software needs none, but gives back what it is
//! given, as the driver counts them.

use crate::bits::Field;
use crate::mailbox::MAX_LEN;
use crate::opcode::{Answer, Status};

const COUNT: Field = Field::new(0x60, 32);
const LIST: usize = 16;

const FAILED: u16 = 0;
const GIVE: u16 = 1;
const TAKE: u16 = 2;

/// The pages lent to us.
#[derive(Default)]
pub(crate) struct Pages(Vec<[u8; 8]>);

/// Most pages that we take, who ask for none.
const MOST: usize = 1 << 16;

impl Pages {
    pub(crate) fn manage(&mut self, op_mod: u16, input: &[u8]) -> Answer {
        let count = COUNT.get(input) as usize;
        match op_mod {
            // The driver has no page for us.
            FAILED => Ok(vec![0; 8]),
            GIVE => {
                let list = input.get(LIST..).unwrap_or_default();
                let list = count.checked_mul(8).and_then(|bytes| list.get(..bytes));
                let list = list.ok_or(Status::BadInputLength)?;
                if self.0.len() + count > MOST {
                    return Err(Status::Limits);
                }
                self.0.extend(list.as_chunks().0);
                Ok(vec![0; 8])
            }
            TAKE => {
                let count = count.min(self.0.len()).min((MAX_LEN - LIST) / 8);
                let returned = self.0.split_off(self.0.len() - count);
                let mut answer = vec![0; 8];
                answer[..4].copy_from_slice(&(count as u32).to_be_bytes());
                answer.extend(returned.concat());
                Ok(answer)
            }
            _ => Err(Status::BadParameter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_comes_back() {
        let mut pages = Pages::default();
        let mut input = vec![0; 16 + 24];
        COUNT.set(&mut input, 3);
        input[16..].copy_from_slice(&[1; 24]);
        pages.manage(GIVE, &input).unwrap();
        COUNT.set(&mut input, 2);
        assert_eq!(pages.manage(TAKE, &input).unwrap().len(), 8 + 16);
        COUNT.set(&mut input, u32::MAX.into());
        let rest = pages.manage(TAKE, &input).unwrap();
        assert_eq!((rest[3], rest.len()), (1, 8 + 8));
        assert_eq!(pages.manage(GIVE, &input), Err(Status::BadInputLength));
        assert_eq!(pages.manage(9, &input), Err(Status::BadParameter));
    }
}
