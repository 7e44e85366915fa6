//! Conversions between the kernel's structs and ours that librdmacm calls for
//! (`infiniband/marshall.h`).

use crate::base::ffi::{arg, arg_mut, quiet};
use verbs_sys::*;

/// Converts an address from the kernel's form.
pub(crate) unsafe extern "C" fn ibv_copy_ah_attr_from_kern(
    dst: *mut ibv_ah_attr,
    src: *const ib_uverbs_ah_attr,
) {
    quiet((), || {
        // SAFETY: the caller passes live structs.
        let (dst, src) = unsafe { (arg_mut(dst)?, arg(src)?) };
        copy_ah(dst, src);
        Ok(())
    });
}

fn copy_ah(dst: &mut ibv_ah_attr, src: &ib_uverbs_ah_attr) {
    dst.grh.dgid.raw = src.dgid;
    dst.grh.flow_label = src.flow_label;
    dst.grh.sgid_index = src.sgid_index;
    dst.grh.hop_limit = src.hop_limit;
    dst.grh.traffic_class = src.traffic_class;
    dst.dlid = src.dlid;
    dst.sl = src.sl;
    dst.src_path_bits = src.src_path_bits;
    dst.static_rate = src.static_rate;
    dst.is_global = src.is_global;
    dst.port_num = src.port_num;
}

/// Converts QP attributes from the kernel's form. `qp_state` stays as the caller set it, as in
/// libibverbs.
pub(crate) unsafe extern "C" fn ibv_copy_qp_attr_from_kern(
    dst: *mut ibv_qp_attr,
    src: *const ib_uverbs_qp_attr,
) {
    quiet((), || {
        // SAFETY: the caller passes live structs.
        let (dst, src) = unsafe { (arg_mut(dst)?, arg(src)?) };
        dst.cur_qp_state = src.cur_qp_state;
        dst.path_mtu = src.path_mtu;
        dst.path_mig_state = src.path_mig_state;
        dst.qkey = src.qkey;
        dst.rq_psn = src.rq_psn;
        dst.sq_psn = src.sq_psn;
        dst.dest_qp_num = src.dest_qp_num;
        dst.qp_access_flags = src.qp_access_flags;
        dst.cap = ibv_qp_cap {
            max_send_wr: src.max_send_wr,
            max_recv_wr: src.max_recv_wr,
            max_send_sge: src.max_send_sge,
            max_recv_sge: src.max_recv_sge,
            max_inline_data: src.max_inline_data,
        };
        copy_ah(&mut dst.ah_attr, &src.ah_attr);
        copy_ah(&mut dst.alt_ah_attr, &src.alt_ah_attr);
        dst.pkey_index = src.pkey_index;
        dst.alt_pkey_index = src.alt_pkey_index;
        dst.en_sqd_async_notify = src.en_sqd_async_notify;
        dst.sq_draining = src.sq_draining;
        dst.max_rd_atomic = src.max_rd_atomic;
        dst.max_dest_rd_atomic = src.max_dest_rd_atomic;
        dst.min_rnr_timer = src.min_rnr_timer;
        dst.port_num = src.port_num;
        dst.timeout = src.timeout;
        dst.retry_cnt = src.retry_cnt;
        dst.rnr_retry = src.rnr_retry;
        dst.alt_port_num = src.alt_port_num;
        dst.alt_timeout = src.alt_timeout;
        Ok(())
    });
}

/// Converts a path record from the kernel's form.
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_from_kern(
    dst: *mut ibv_sa_path_rec,
    src: *const ib_user_path_rec,
) {
    quiet((), || {
        // SAFETY: the caller passes live structs.
        let (dst, src) = unsafe { (arg_mut(dst)?, arg(src)?) };
        *dst = ibv_sa_path_rec {
            dgid: ibv_gid { raw: src.dgid },
            sgid: ibv_gid { raw: src.sgid },
            dlid: src.dlid,
            slid: src.slid,
            raw_traffic: src.raw_traffic as i32,
            flow_label: src.flow_label,
            hop_limit: src.hop_limit,
            traffic_class: src.traffic_class,
            reversible: src.reversible as i32,
            numb_path: src.numb_path,
            pkey: src.pkey,
            sl: src.sl,
            mtu_selector: src.mtu_selector,
            mtu: src.mtu as u8,
            rate_selector: src.rate_selector,
            rate: src.rate,
            packet_life_time_selector: src.packet_life_time_selector,
            packet_life_time: src.packet_life_time,
            preference: src.preference,
        };
        Ok(())
    });
}

/// Converts a path record to the kernel's form.
pub(crate) unsafe extern "C" fn ibv_copy_path_rec_to_kern(
    dst: *mut ib_user_path_rec,
    src: *const ibv_sa_path_rec,
) {
    quiet((), || {
        // SAFETY: the caller passes live structs.
        let (dst, src) = unsafe { (arg_mut(dst)?, arg(src)?) };
        *dst = ib_user_path_rec {
            dgid: src.dgid.raw,
            sgid: src.sgid.raw,
            dlid: src.dlid,
            slid: src.slid,
            raw_traffic: src.raw_traffic as u32,
            flow_label: src.flow_label,
            reversible: src.reversible as u32,
            mtu: u32::from(src.mtu),
            pkey: src.pkey,
            hop_limit: src.hop_limit,
            traffic_class: src.traffic_class,
            numb_path: src.numb_path,
            sl: src.sl,
            mtu_selector: src.mtu_selector,
            rate_selector: src.rate_selector,
            rate: src.rate,
            packet_life_time_selector: src.packet_life_time_selector,
            packet_life_time: src.packet_life_time,
            preference: src.preference,
        };
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_record_survives_both_ways() {
        let kernel = ib_user_path_rec {
            dgid: [1; 16],
            sgid: [2; 16],
            dlid: 3,
            slid: 4,
            raw_traffic: 1,
            flow_label: 5,
            reversible: 1,
            mtu: 5,
            pkey: hca::DEFAULT_PKEY,
            hop_limit: 64,
            traffic_class: 7,
            numb_path: 8,
            sl: 9,
            mtu_selector: 2,
            rate_selector: 2,
            rate: 16,
            packet_life_time_selector: 2,
            packet_life_time: 18,
            preference: 1,
        };
        let mut record = ibv_sa_path_rec::default();
        let mut back = ib_user_path_rec::default();
        // SAFETY: all three are live locals.
        unsafe {
            ibv_copy_path_rec_from_kern(&mut record, &kernel);
            ibv_copy_path_rec_to_kern(&mut back, &record);
        }
        assert_eq!(back, kernel);
        assert_eq!((record.mtu, record.rate, record.hop_limit), (5, 16, 64));
    }

    #[test]
    fn qp_state_is_left_to_the_caller() {
        // SAFETY: all-zero is a valid value of this struct of integers.
        let mut kernel: ib_uverbs_qp_attr = unsafe { std::mem::zeroed() };
        kernel.qp_state = 3;
        kernel.ah_attr.dgid = [9; 16];
        kernel.max_send_sge = 4;
        kernel.alt_timeout = 14;
        let mut attr = ibv_qp_attr { qp_state: 1, ..Default::default() };
        // SAFETY: both are live locals.
        unsafe { ibv_copy_qp_attr_from_kern(&mut attr, &kernel) };
        assert_eq!(attr.qp_state, 1);
        assert_eq!(attr.ah_attr.grh.dgid.raw, [9; 16]);
        assert_eq!((attr.cap.max_send_sge, attr.alt_timeout), (4, 14));
    }

    #[test]
    fn null_is_ignored() {
        // SAFETY: null is allowed.
        unsafe { ibv_copy_qp_attr_from_kern(std::ptr::null_mut(), std::ptr::null()) };
    }
}
