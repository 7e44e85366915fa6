//! Every field we touch lies where the installed `infiniband/verbs.h` puts it: a C program prints the header's
//! offsets, this test prints ours, and both must agree. Fields newer than the header are left out of the C side.

use super::*;
use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::{offset_of, size_of};
use std::process::{Command, Stdio};

/// One struct: its size, unless it grew since the header, and (field in C, offset here).
struct Layout {
    name: &'static str,
    size: Option<usize>,
    fields: Vec<(&'static str, usize)>,
}

macro_rules! layout {
    ($ty:ident { $($c:literal = $($rust:ident).+),* $(,)? }) => {
        Layout {
            name: stringify!($ty),
            size: Some(size_of::<$ty>()),
            fields: vec![$(($c, offset_of!($ty, $($rust).+))),*],
        }
    };
    ($ty:ident { $($f:ident),* $(,)? }) => {
        Layout {
            name: stringify!($ty),
            size: Some(size_of::<$ty>()),
            fields: vec![$((stringify!($f), offset_of!($ty, $f))),*],
        }
    };
}

fn grown(mut layout: Layout) -> Layout {
    layout.size = None;
    layout
}

/// `verbs_context` is compared from its end, where `context` is.
fn verbs_context_from_end() -> Vec<(&'static str, usize)> {
    let end = size_of::<verbs_context>();
    macro_rules! from_end {
        ($($c:literal = $f:ident),* $(,)?) => { vec![$(($c, end - offset_of!(verbs_context, $f))),*] };
    }
    from_end!(
        "query_port" = query_port,
        "advise_mr" = advise_mr,
        "alloc_null_mr" = alloc_null_mr,
        "read_counters" = read_counters,
        "create_counters" = create_counters,
        "reg_dm_mr" = reg_dm_mr,
        "alloc_dm" = alloc_dm,
        "free_dm" = free_dm,
        "modify_qp_rate_limit" = modify_qp_rate_limit,
        "alloc_parent_domain" = alloc_parent_domain,
        "dealloc_td" = dealloc_td,
        "alloc_td" = alloc_td,
        "modify_cq" = modify_cq,
        "post_srq_ops" = post_srq_ops,
        "destroy_rwq_ind_table" = destroy_rwq_ind_table,
        "create_rwq_ind_table" = create_rwq_ind_table,
        "destroy_wq" = destroy_wq,
        "modify_wq" = modify_wq,
        "create_wq" = create_wq,
        "query_rt_values" = query_rt_values,
        "create_cq_ex" = create_cq_ex,
        "priv" = private,
        "query_device_ex" = query_device_ex,
        "ibv_destroy_flow" = destroy_flow,
        "ibv_create_flow" = create_flow,
        "open_qp" = open_qp,
        "create_qp_ex" = create_qp_ex,
        "get_srq_num" = get_srq_num,
        "create_srq_ex" = create_srq_ex,
        "open_xrcd" = open_xrcd,
        "close_xrcd" = close_xrcd,
        "sz" = sz,
        "context" = context,
    )
}

fn layouts() -> Vec<Layout> {
    vec![
        layout!(ibv_device { "node_type" = node_type, "transport_type" = transport_type, "name" = name,
            "dev_name" = dev_name, "dev_path" = dev_path, "ibdev_path" = ibdev_path }),
        layout!(ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }),
        layout!(ibv_device_attr {
            fw_ver,
            node_guid,
            sys_image_guid,
            max_mr_size,
            page_size_cap,
            vendor_id,
            vendor_part_id,
            hw_ver,
            max_qp,
            max_qp_wr,
            device_cap_flags,
            max_sge,
            max_sge_rd,
            max_cq,
            max_cqe,
            max_mr,
            max_pd,
            max_qp_rd_atom,
            max_ee_rd_atom,
            max_res_rd_atom,
            max_qp_init_rd_atom,
            max_ee_init_rd_atom,
            atomic_cap,
            max_ee,
            max_rdd,
            max_mw,
            max_raw_ipv6_qp,
            max_raw_ethy_qp,
            max_mcast_grp,
            max_mcast_qp_attach,
            max_total_mcast_qp_attach,
            max_ah,
            max_fmr,
            max_map_per_fmr,
            max_srq,
            max_srq_wr,
            max_srq_sge,
            max_pkeys,
            local_ca_ack_delay,
            phys_port_cnt
        }),
        layout!(ibv_device_attr_ex {
            orig_attr,
            comp_mask,
            odp_caps,
            completion_timestamp_mask,
            hca_core_clock,
            device_cap_flags_ex,
            tso_caps,
            rss_caps,
            max_wq_type_rq,
            packet_pacing_caps,
            raw_packet_caps,
            tm_caps,
            cq_mod_caps,
            max_dm_size,
            pci_atomic_caps,
            xrc_odp_caps,
            phys_port_cnt_ex
        }),
        layout!(ibv_device_attr_ex {
            "odp_caps.per_transport_caps.rc_odp_caps" = odp_caps.rc_odp_caps,
            "odp_caps.per_transport_caps.ud_odp_caps" = odp_caps.ud_odp_caps,
            "rss_caps.rx_hash_function" = rss_caps.rx_hash_function,
            "tm_caps.max_sge" = tm_caps.max_sge }),
        grown(layout!(ibv_port_attr {
            state,
            max_mtu,
            active_mtu,
            gid_tbl_len,
            port_cap_flags,
            max_msg_sz,
            bad_pkey_cntr,
            qkey_viol_cntr,
            pkey_tbl_len,
            lid,
            sm_lid,
            lmc,
            max_vl_num,
            sm_sl,
            subnet_timeout,
            init_type_reply,
            active_width,
            active_speed,
            phys_state,
            link_layer,
            flags,
            port_cap_flags2
        })),
        layout!(ibv_values_ex { comp_mask, raw_clock }),
        layout!(ibv_context_ops {
            "_compat_query_device" = query_device, "_compat_query_port" = query_port,
            "_compat_alloc_pd" = compat1, "alloc_mw" = alloc_mw, "bind_mw" = bind_mw,
            "dealloc_mw" = dealloc_mw, "_compat_create_cq" = create_cq, "poll_cq" = poll_cq,
            "req_notify_cq" = req_notify_cq, "_compat_cq_event" = compat2,
            "post_srq_recv" = post_srq_recv, "_compat_create_qp" = compat3,
            "post_send" = post_send, "post_recv" = post_recv, "_compat_create_ah" = compat4 }),
        layout!(ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }),
        layout!(ibv_async_event { element, event_type }),
        layout!(ibv_pd { context, handle }),
        layout!(ibv_td { context }),
        layout!(ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }),
        layout!(ibv_mr { context, pd, addr, length, handle, lkey, rkey }),
        layout!(ibv_mw { "context" = context, "pd" = pd, "rkey" = rkey, "handle" = handle, "type" = mw_type }),
        layout!(ibv_xrcd { context }),
        layout!(ibv_xrcd_init_attr { comp_mask, fd, oflags }),
        layout!(ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type }),
        layout!(ibv_mw_bind_info { mr, addr, length, mw_access_flags }),
        layout!(ibv_mw_bind { wr_id, send_flags, bind_info }),
        layout!(ibv_alloc_dm_attr { length, log_align_req, comp_mask }),
        layout!(ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle }),
        layout!(ibv_counters { context }),
        layout!(ibv_counters_init_attr { comp_mask }),
        layout!(ibv_counter_attach_attr { counter_desc, index, comp_mask }),
        layout!(ibv_comp_channel { context, fd, refcnt }),
        layout!(ibv_cq {
            context,
            channel,
            cq_context,
            handle,
            cqe,
            mutex,
            cond,
            comp_events_completed,
            async_events_completed
        }),
        layout!(ibv_cq_ex {
            comp_mask,
            status,
            wr_id,
            start_poll,
            next_poll,
            end_poll,
            read_opcode,
            read_vendor_err,
            read_byte_len,
            read_imm_data,
            read_qp_num,
            read_src_qp,
            read_wc_flags,
            read_slid,
            read_sl,
            read_dlid_path_bits,
            read_completion_ts,
            read_cvlan,
            read_flow_tag,
            read_tm_info,
            read_completion_wallclock_ns
        }),
        layout!(ibv_cq_init_attr_ex {
            cqe,
            cq_context,
            channel,
            comp_vector,
            wc_flags,
            comp_mask,
            flags,
            parent_domain
        }),
        layout!(ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }),
        layout!(ibv_srq_attr { max_wr, max_sge, srq_limit }),
        layout!(ibv_srq_init_attr { srq_context, attr }),
        layout!(ibv_srq_init_attr_ex {
            srq_context,
            attr,
            comp_mask,
            srq_type,
            pd,
            xrcd,
            cq,
            tm_cap
        }),
        layout!(ibv_tm_cap { max_num_tags, max_ops }),
        layout!(ibv_wc_tm_info { "tag" = tag, "priv" = private }),
        layout!(ibv_ops_wr {
            "wr_id" = wr_id,
            "next" = next,
            "opcode" = opcode,
            "flags" = flags,
            "tm.unexpected_cnt" = tm.unexpected_cnt,
            "tm.handle" = tm.handle,
            "tm.add.recv_wr_id" = tm.recv_wr_id,
            "tm.add.sg_list" = tm.sg_list,
            "tm.add.num_sge" = tm.num_sge,
            "tm.add.tag" = tm.tag,
            "tm.add.mask" = tm.mask
        }),
        layout!(ibv_qp {
            context,
            qp_context,
            pd,
            send_cq,
            recv_cq,
            srq,
            handle,
            qp_num,
            state,
            qp_type,
            mutex,
            cond,
            events_completed
        }),
        grown(layout!(ibv_qp_ex {
            qp_base,
            comp_mask,
            wr_id,
            wr_flags,
            wr_atomic_cmp_swp,
            wr_atomic_fetch_add,
            wr_bind_mw,
            wr_local_inv,
            wr_rdma_read,
            wr_rdma_write,
            wr_rdma_write_imm,
            wr_send,
            wr_send_imm,
            wr_send_inv,
            wr_send_tso,
            wr_set_ud_addr,
            wr_set_xrc_srqn,
            wr_set_inline_data,
            wr_set_inline_data_list,
            wr_set_sge,
            wr_set_sge_list,
            wr_start,
            wr_complete,
            wr_abort,
            wr_atomic_write
        })),
        layout!(ibv_qp_cap {
            max_send_wr,
            max_recv_wr,
            max_send_sge,
            max_recv_sge,
            max_inline_data
        }),
        layout!(ibv_wq {
            context,
            wq_context,
            pd,
            cq,
            wq_num,
            handle,
            state,
            wq_type,
            post_recv,
            mutex,
            cond,
            events_completed,
            comp_mask
        }),
        layout!(ibv_wq_init_attr {
            wq_context,
            wq_type,
            max_wr,
            max_sge,
            pd,
            cq,
            comp_mask,
            create_flags
        }),
        layout!(ibv_wq_attr { attr_mask, wq_state, curr_wq_state, flags, flags_mask }),
        layout!(ibv_rwq_ind_table { context, ind_tbl_handle, ind_tbl_num, comp_mask }),
        layout!(ibv_rwq_ind_table_init_attr { log_ind_tbl_size, ind_tbl, comp_mask }),
        layout!(ibv_rx_hash_conf {
            rx_hash_function,
            rx_hash_key_len,
            rx_hash_key,
            rx_hash_fields_mask
        }),
        layout!(ibv_flow { comp_mask, context, handle }),
        layout!(ibv_flow_attr { "comp_mask" = comp_mask, "type" = kind, "size" = size, "priority" = priority,
            "num_of_specs" = num_of_specs, "port" = port, "flags" = flags }),
        layout!(ibv_flow_spec_eth { "type" = kind, "size" = size, "val" = val, "mask" = mask }),
        layout!(ibv_flow_spec_ipv4 { "type" = kind, "size" = size, "val" = val, "mask" = mask }),
        layout!(ibv_flow_spec_ipv4_ext { "type" = kind, "size" = size, "val" = val, "mask" = mask }),
        layout!(ibv_flow_spec_ipv6 { "type" = kind, "size" = size, "val" = val, "mask" = mask }),
        layout!(ibv_flow_spec_tcp_udp { "type" = kind, "size" = size, "val" = val, "mask" = mask }),
        layout!(ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }),
        layout!(ibv_qp_init_attr_ex {
            qp_context,
            send_cq,
            recv_cq,
            srq,
            cap,
            qp_type,
            sq_sig_all,
            comp_mask,
            pd,
            xrcd,
            create_flags,
            max_tso_header,
            rwq_ind_tbl,
            rx_hash_conf,
            source_qpn,
            send_ops_flags
        }),
        layout!(ibv_qp_attr {
            qp_state,
            cur_qp_state,
            path_mtu,
            path_mig_state,
            qkey,
            rq_psn,
            sq_psn,
            dest_qp_num,
            qp_access_flags,
            cap,
            ah_attr,
            alt_ah_attr,
            pkey_index,
            alt_pkey_index,
            en_sqd_async_notify,
            sq_draining,
            max_rd_atomic,
            max_dest_rd_atomic,
            min_rnr_timer,
            port_num,
            timeout,
            retry_cnt,
            rnr_retry,
            alt_port_num,
            alt_timeout,
            rate_limit
        }),
        layout!(ibv_ah { context, pd, handle }),
        layout!(ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }),
        layout!(ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }),
        layout!(ibv_sge { addr, length, lkey }),
        layout!(ibv_data_buf { addr, length }),
        layout!(ibv_send_wr {
            "wr_id" = wr_id, "next" = next, "sg_list" = sg_list, "num_sge" = num_sge,
            "opcode" = opcode, "send_flags" = send_flags, "imm_data" = imm_or_rkey,
            "invalidate_rkey" = imm_or_rkey, "wr" = wr, "wr.rdma.remote_addr" = wr.rdma.remote_addr,
            "wr.rdma.rkey" = wr.rdma.rkey, "wr.atomic.compare_add" = wr.atomic.compare_add,
            "wr.atomic.swap" = wr.atomic.swap, "wr.atomic.rkey" = wr.atomic.rkey,
            "wr.ud.ah" = wr.ud.ah, "wr.ud.remote_qpn" = wr.ud.remote_qpn,
            "wr.ud.remote_qkey" = wr.ud.remote_qkey,
            "qp_type.xrc.remote_srqn" = remote_srqn, "bind_mw" = bind_mw,
            "bind_mw.rkey" = bind_mw.rkey,
            "bind_mw.bind_info.length" = bind_mw.bind_info.length }),
        layout!(ibv_recv_wr { wr_id, next, sg_list, num_sge }),
        layout!(ibv_wc { "wr_id" = wr_id, "status" = status, "opcode" = opcode,
            "vendor_err" = vendor_err, "byte_len" = byte_len, "imm_data" = imm_or_rkey,
            "qp_num" = qp_num, "src_qp" = src_qp, "wc_flags" = wc_flags,
            "pkey_index" = pkey_index, "slid" = slid, "sl" = sl,
            "dlid_path_bits" = dlid_path_bits }),
        layout!(ibv_ece { vendor_id, options, comp_mask }),
        layout!(ib_uverbs_ah_attr { "grh.dgid" = dgid, "grh.flow_label" = flow_label,
            "grh.traffic_class" = traffic_class, "dlid" = dlid, "static_rate" = static_rate,
            "port_num" = port_num }),
        layout!(ib_uverbs_qp_attr {
            qp_attr_mask,
            qp_state,
            path_mtu,
            qp_access_flags,
            ah_attr,
            alt_ah_attr,
            max_send_wr,
            max_inline_data,
            pkey_index,
            en_sqd_async_notify,
            timeout,
            alt_timeout
        }),
        layout!(ib_user_path_rec {
            dgid,
            sgid,
            dlid,
            slid,
            raw_traffic,
            flow_label,
            reversible,
            mtu,
            pkey,
            hop_limit,
            numb_path,
            rate,
            preference
        }),
        layout!(ibv_sa_path_rec {
            dgid,
            sgid,
            dlid,
            raw_traffic,
            flow_label,
            hop_limit,
            reversible,
            numb_path,
            pkey,
            sl,
            mtu,
            rate,
            packet_life_time,
            preference
        }),
    ]
}

/// Compiles `source` and returns what the program prints.
fn run_c(source: &str) -> String {
    let exe = std::env::temp_dir().join(format!("peerdma-layout-{}", std::process::id()));
    let mut cc = Command::new("cc")
        .args(["-x", "c", "-o"])
        .arg(&exe)
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler (apt install gcc libibverbs-dev)");
    cc.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(cc.wait().unwrap().success(), "the C program does not compile:\n{source}");
    let out = Command::new(&exe).output().unwrap();
    std::fs::remove_file(&exe).unwrap();
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn every_field_lies_where_the_installed_header_puts_it() {
    let mut c = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n\
         #include <infiniband/sa.h>\n#include <rdma/ib_user_sa.h>\n#include <rdma/ib_user_verbs.h>\n\
         int main(void) {\n",
    );
    let mut ours = String::new();
    for layout in layouts() {
        let name = layout.name;
        if let Some(size) = layout.size {
            writeln!(c, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
            writeln!(ours, "{name} {size}").unwrap();
        }
        for (field, offset) in layout.fields {
            writeln!(c, "printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {field}));")
                .unwrap();
            writeln!(ours, "{name}.{field} {offset}").unwrap();
        }
    }
    for (field, from_end) in verbs_context_from_end() {
        writeln!(
            c,
            "printf(\"verbs_context.{field} -%zu\\n\", \
             sizeof(struct verbs_context) - offsetof(struct verbs_context, {field}));"
        )
        .unwrap();
        writeln!(ours, "verbs_context.{field} -{from_end}").unwrap();
    }
    c.push_str("return 0; }\n");
    let theirs = run_c(&c);
    assert!(theirs.lines().count() > 300);
    for (theirs, ours) in theirs.lines().zip(ours.lines()) {
        assert_eq!(theirs, ours, "left: the header, right: ours");
    }
    assert_eq!(theirs.lines().count(), ours.lines().count());
}
