//! Pages that a driver lends the firmware (`QUERY_PAGES`, `MANAGE_PAGES`): software needs none, but
//! gives back what it is given, as the driver counts them.

use crate::command::mailbox::MAX_LEN;
use crate::layout::head::{Answer, Status};
use crate::request::function::ManagePages;

// Values of `op_mod`.
const FAILED: u16 = 0;
const GIVE: u16 = 1;
const TAKE: u16 = 2;

/// The pages lent to us.
#[derive(Default)]
pub(crate) struct Pages(Vec<u64>);

/// The most pages that are taken, though none is asked for.
const MOST: usize = 1 << 16;
/// Pages that one answer has room for, behind its first 16 bytes.
const MOST_RETURNED: usize = (MAX_LEN - 16) / 8;

impl Pages {
    pub(crate) fn manage(&mut self, request: &ManagePages) -> Answer {
        let count = request.input_num_entries as usize;
        match request.op_mod {
            // The driver has no page for us.
            FAILED => Ok(vec![0; 8]),
            GIVE => {
                let list = request.pas.get(..count).ok_or(Status::BadInputLength)?;
                if self.0.len() + count > MOST {
                    return Err(Status::Limits);
                }
                self.0.extend(list);
                Ok(vec![0; 8])
            }
            TAKE => {
                let count = count.min(self.0.len()).min(MOST_RETURNED);
                let returned = self.0.split_off(self.0.len() - count);
                let mut answer = vec![0; 8];
                answer[..4].copy_from_slice(&(count as u32).to_be_bytes());
                answer.extend(returned.into_iter().flat_map(u64::to_be_bytes));
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
        let mut manage = |op_mod, input_num_entries| {
            pages.manage(&ManagePages { op_mod, input_num_entries, pas: vec![1; 3] })
        };
        manage(GIVE, 3).unwrap();
        assert_eq!(manage(TAKE, 2).unwrap().len(), 8 + 16);
        let rest = manage(TAKE, u32::MAX).unwrap();
        assert_eq!((rest[3], rest.len()), (1, 8 + 8));
        assert_eq!(manage(GIVE, u32::MAX), Err(Status::BadInputLength));
        assert_eq!(manage(9, 1), Err(Status::BadParameter));
    }
}
