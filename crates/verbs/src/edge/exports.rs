//! Every symbol this library exports under a version, and which function is behind it.
//!
//! Rust has no symbol versions, so each export is a trampoline in assembly: a label that `.symver`
//! renames to `name@@VERSION` (what new programs link to) or `name@VERSION` (for old ones only),
//! and a jump. The nodes themselves are in `libibverbs.map`. Names and versions are those of
//! rdma-core 65, and of `include`; `data/verbs-symbols.txt` is checked against the built library by
//! a test.
//!
//! The names of the C library that the crate `shim` interposes are exported without a version, by
//! the linker, or under the C library's, by that crate.

/// One trampoline.
#[cfg(target_arch = "x86_64")]
macro_rules! trampoline {
    ($name:literal, $at:literal, $version:literal, $function:path) => {
        std::arch::global_asm!(
            ".pushsection .text.peerdma_exports,\"ax\",@progbits",
            ".p2align 4",
            concat!(".globl peerdma_export_", $name, "_", $version),
            concat!(".type peerdma_export_", $name, "_", $version, ", @function"),
            concat!("peerdma_export_", $name, "_", $version, ":"),
            "endbr64",
            "jmp {function}",
            concat!(".symver peerdma_export_", $name, "_", $version, ", ", $name, $at, $version),
            ".popsection",
            function = sym $function,
        );
    };
}

/// One trampoline.
#[cfg(target_arch = "aarch64")]
macro_rules! trampoline {
    ($name:literal, $at:literal, $version:literal, $function:path) => {
        std::arch::global_asm!(
            ".pushsection .text.peerdma_exports,\"ax\",%progbits",
            ".p2align 4",
            concat!(".globl peerdma_export_", $name, "_", $version),
            concat!(".type peerdma_export_", $name, "_", $version, ", %function"),
            concat!("peerdma_export_", $name, "_", $version, ":"),
            "hint #34", // bti c
            "b {function}",
            concat!(".symver peerdma_export_", $name, "_", $version, ", ", $name, $at, $version),
            ".popsection",
            function = sym $function,
        );
    };
}

/// The default version of each name.
macro_rules! exports {
    ($($version:literal { $($name:literal => $function:path,)* })*) => {
        $($(trampoline!($name, "@@@", $version, $function);)*)*
    };
}

/// Further versions of names that programs may ask for.
macro_rules! older {
    ($($version:literal { $($name:literal => $function:path,)* })*) => {
        $($(trampoline!($name, "@", $version, $function);)*)*
    };
}

use crate::edge::{
    compat, device_list, device_private, marshal, mlx5dv_device, open, rate, strings, sysfs_files,
    unsupported,
};
use crate::engine::fork;
use crate::mlx5dv;
use crate::objects::{ah, channel, cq, pd, query, srq};
use crate::queues::{async_events, qp};
use crate::regions::{buf, dm, import, mr, mr_fd, rereg};

exports! {
    "PEERDMA_1.0" {
        "ibv_query_mr_fd_commands" => mr_fd::ibv_query_mr_fd_commands,
        "ibv_reg_mr_fd" => mr_fd::ibv_reg_mr_fd,
        "ibv_rereg_mr_fd" => mr_fd::ibv_rereg_mr_fd,
        "peerdma_migrate_to_gpu" => device_private::peerdma_migrate_to_gpu,
        "peerdma_migrate_to_host" => device_private::peerdma_migrate_to_host,
        "peerdma_mlx5dv_get_data_direct_sysfs_path" =>
            mlx5dv::data_direct::get_data_direct_sysfs_path,
        "peerdma__mlx5dv_mkey_check" => mlx5dv::mkey::mkey_check,
        "peerdma_mlx5dv_create_mkey" => mlx5dv::mkey::create_mkey,
        "peerdma_mlx5dv_create_qp" => mlx5dv::wr::create_qp,
        "peerdma_mlx5dv_destroy_mkey" => mlx5dv::mkey::destroy_mkey,
        "peerdma_mlx5dv_qp_ex_from_ibv_qp_ex" => mlx5dv::wr::qp_ex_from_ibv_qp_ex,
        "peerdma_mlx5dv_qp_cancel_posted_send_wrs" => mlx5dv::wr::cancel_posted_send_wrs,
        "peerdma_mlx5dv_is_supported" => mlx5dv_device::is_supported,
        "peerdma_mlx5dv_open_device" => mlx5dv_device::open_device,
        "peerdma_mlx5dv_query_device" => mlx5dv_device::query_device,
        "peerdma_mlx5dv_reg_dmabuf_mr" => mlx5dv::data_direct::reg_dmabuf_mr,
    }
    "IBVERBS_1.0" {
        "ibv_create_comp_channel" => channel::ibv_create_comp_channel,
        "ibv_destroy_comp_channel" => channel::ibv_destroy_comp_channel,
        "ibv_rate_to_mult" => rate::ibv_rate_to_mult,
        "mult_to_ibv_rate" => rate::mult_to_ibv_rate,
        "ibv_copy_path_rec_from_kern" => marshal::ibv_copy_path_rec_from_kern,
        "ibv_copy_path_rec_to_kern" => marshal::ibv_copy_path_rec_to_kern,
        "ibv_copy_qp_attr_from_kern" => marshal::ibv_copy_qp_attr_from_kern,
        "ibv_get_sysfs_path" => sysfs_files::ibv_get_sysfs_path,
        "ibv_read_sysfs_file" => sysfs_files::ibv_read_sysfs_file,
    }
    "IBVERBS_1.1" {
        "ibv_ack_async_event" => async_events::ibv_ack_async_event,
        "ibv_ack_cq_events" => channel::ibv_ack_cq_events,
        "ibv_alloc_pd" => pd::ibv_alloc_pd,
        "ibv_attach_mcast" => qp::ibv_attach_mcast,
        "ibv_close_device" => open::ibv_close_device,
        "ibv_create_ah" => ah::ibv_create_ah,
        "ibv_create_ah_from_wc" => ah::ibv_create_ah_from_wc,
        "ibv_create_cq" => cq::ibv_create_cq,
        "ibv_create_qp" => qp::create::ibv_create_qp,
        "ibv_create_srq" => srq::ibv_create_srq,
        "ibv_dealloc_pd" => pd::ibv_dealloc_pd,
        "ibv_dereg_mr" => mr::ibv_dereg_mr,
        "ibv_destroy_ah" => ah::ibv_destroy_ah,
        "ibv_destroy_cq" => cq::ibv_destroy_cq,
        "ibv_destroy_qp" => qp::ibv_destroy_qp,
        "ibv_destroy_srq" => srq::ibv_destroy_srq,
        "ibv_detach_mcast" => qp::ibv_detach_mcast,
        "ibv_dofork_range" => fork::ibv_dofork_range,
        "ibv_dontfork_range" => fork::ibv_dontfork_range,
        "ibv_event_type_str" => strings::ibv_event_type_str,
        "ibv_fork_init" => fork::ibv_fork_init,
        "ibv_free_device_list" => device_list::ibv_free_device_list,
        "ibv_get_async_event" => async_events::ibv_get_async_event,
        "ibv_get_cq_event" => channel::ibv_get_cq_event,
        "ibv_get_device_guid" => device_list::ibv_get_device_guid,
        "ibv_get_device_list" => device_list::ibv_get_device_list,
        "ibv_get_device_name" => device_list::ibv_get_device_name,
        "ibv_init_ah_from_wc" => ah::ibv_init_ah_from_wc,
        "ibv_modify_qp" => qp::attr::ibv_modify_qp,
        "ibv_modify_srq" => srq::ibv_modify_srq,
        "ibv_node_type_str" => strings::ibv_node_type_str,
        "ibv_open_device" => open::ibv_open_device,
        "ibv_port_state_str" => strings::ibv_port_state_str,
        "ibv_query_device" => query::ibv_query_device,
        "ibv_query_gid" => query::ibv_query_gid,
        "ibv_query_pkey" => query::ibv_query_pkey,
        "ibv_query_port" => query::ibv_query_port,
        "ibv_query_qp" => qp::attr::ibv_query_qp,
        "ibv_query_srq" => srq::ibv_query_srq,
        "ibv_rate_to_mbps" => rate::ibv_rate_to_mbps,
        "ibv_reg_mr" => mr::ibv_reg_mr,
        "ibv_rereg_mr" => rereg::ibv_rereg_mr,
        "ibv_resize_cq" => cq::ibv_resize_cq,
        "ibv_resolve_eth_l2_from_gid" => ah::ibv_resolve_eth_l2_from_gid,
        "ibv_wc_status_str" => strings::ibv_wc_status_str,
        "mbps_to_ibv_rate" => rate::mbps_to_ibv_rate,
        "ibv_copy_ah_attr_from_kern" => marshal::ibv_copy_ah_attr_from_kern,
    }
    "IBVERBS_1.5" {
        "ibv_get_pkey_index" => query::ibv_get_pkey_index,
    }
    "IBVERBS_1.6" {
        "ibv_qp_to_qp_ex" => qp::ibv_qp_to_qp_ex,
    }
    "IBVERBS_1.7" {
        "ibv_reg_mr_iova" => mr::ibv_reg_mr_iova,
    }
    "IBVERBS_1.8" {
        "ibv_reg_mr_iova2" => mr::ibv_reg_mr_iova2,
    }
    "IBVERBS_1.9" {
        "ibv_get_device_index" => device_list::ibv_get_device_index,
    }
    "IBVERBS_1.10" {
        "ibv_import_device" => open::ibv_import_device,
        "ibv_import_mr" => import::ibv_import_mr,
        "ibv_import_pd" => pd::ibv_import_pd,
        "ibv_query_ece" => unsupported::ibv_query_ece,
        "ibv_set_ece" => unsupported::ibv_set_ece,
        "ibv_unimport_mr" => import::ibv_unimport_mr,
        "ibv_unimport_pd" => pd::ibv_unimport_pd,
    }
    "IBVERBS_1.11" {
        "_ibv_query_gid_ex" => query::ibv_query_gid_ex,
        "_ibv_query_gid_table" => query::ibv_query_gid_table,
    }
    "IBVERBS_1.12" {
        "ibv_reg_dmabuf_mr" => mr::ibv_reg_dmabuf_mr,
    }
    "IBVERBS_1.13" {
        "ibv_import_dm" => dm::ibv_import_dm,
        "ibv_is_fork_initialized" => fork::ibv_is_fork_initialized,
        "ibv_unimport_dm" => dm::ibv_unimport_dm,
    }
    "IBVERBS_1.14" {
        "ibv_query_qp_data_in_order" => qp::ibv_query_qp_data_in_order,
    }
    "IBVERBS_1.15" {
        "ibv_alloc_dmah" => unsupported::ibv_alloc_dmah,
        "ibv_dealloc_dmah" => unsupported::ibv_dealloc_dmah,
        "ibv_reg_mr_ex" => mr::ibv_reg_mr_ex,
    }
    "IBVERBS_1.16" {
        "ibv_dm_export_dmabuf_fd" => unsupported::ibv_dm_export_dmabuf_fd,
        "ibv_query_port_speed" => query::ibv_query_port_speed,
    }
    "IBVERBS_1.17" {
        "ibv_alloc_buf" => buf::ibv_alloc_buf,
        "ibv_free_buf" => buf::ibv_free_buf,
        "ibv_reg_buf_mr" => buf::ibv_reg_buf_mr,
    }
    "IBVERBS_1.18" {
        "_ibv_query_comp_cntr_caps" => unsupported::ibv_query_comp_cntr_caps,
        "ibv_create_comp_cntr" => unsupported::ibv_create_comp_cntr,
        "ibv_destroy_comp_cntr" => unsupported::ibv_destroy_comp_cntr,
        "ibv_export_buf_dmabuf_fd" => buf::ibv_export_buf_dmabuf_fd,
        "ibv_inc_comp_cntr" => unsupported::ibv_inc_comp_cntr,
        "ibv_inc_err_comp_cntr" => unsupported::ibv_inc_err_comp_cntr,
        "ibv_qp_attach_comp_cntr" => unsupported::ibv_qp_attach_comp_cntr,
        "ibv_read_comp_cntr" => unsupported::ibv_read_comp_cntr,
        "ibv_read_err_comp_cntr" => unsupported::ibv_read_err_comp_cntr,
        "ibv_set_comp_cntr" => unsupported::ibv_set_comp_cntr,
        "ibv_set_err_comp_cntr" => unsupported::ibv_set_err_comp_cntr,
    }
    "IBVERBS_PRIVATE_34" {
        "ibv_query_gid_type" => query::ibv_query_gid_type,
        "ibv_wr_opcode_str" => strings::ibv_wr_opcode_str,
    }
}

older! {
    "IBVERBS_1.0" {
        "ibv_get_device_list" => compat::get_device_list,
        "ibv_free_device_list" => compat::nothing,
        "ibv_get_device_name" => compat::no_pointer,
        "ibv_get_device_guid" => compat::no_guid,
        "ibv_open_device" => compat::no_pointer,
        "ibv_close_device" => compat::no_status,
        "ibv_get_async_event" => compat::no_count,
        "ibv_ack_async_event" => compat::nothing,
        "ibv_query_device" => compat::no_status,
        "ibv_query_port" => compat::no_status,
        "ibv_query_gid" => compat::no_count,
        "ibv_query_pkey" => compat::no_count,
        "ibv_alloc_pd" => compat::no_pointer,
        "ibv_dealloc_pd" => compat::no_status,
        "ibv_reg_mr" => compat::no_pointer,
        "ibv_dereg_mr" => compat::no_status,
        "ibv_create_cq" => compat::no_pointer,
        "ibv_resize_cq" => compat::no_status,
        "ibv_destroy_cq" => compat::no_status,
        "ibv_get_cq_event" => compat::no_count,
        "ibv_ack_cq_events" => compat::nothing,
        "ibv_create_srq" => compat::no_pointer,
        "ibv_modify_srq" => compat::no_status,
        "ibv_query_srq" => compat::no_status,
        "ibv_destroy_srq" => compat::no_status,
        "ibv_create_qp" => compat::no_pointer,
        "ibv_query_qp" => compat::no_status,
        "ibv_modify_qp" => compat::no_status,
        "ibv_destroy_qp" => compat::no_status,
        "ibv_create_ah" => compat::no_pointer,
        "ibv_destroy_ah" => compat::no_status,
        "ibv_attach_mcast" => compat::no_status,
        "ibv_detach_mcast" => compat::no_status,
    }
    "IBVERBS_1.1" {
        "ibv_register_driver" => unsupported::ibv_register_driver,
    }
    "IBVERBS_PRIVATE_25" {
        "ibv_query_gid_type" => query::ibv_query_gid_type,
    }
    "IBVERBS_PRIVATE_33" {
        "ibv_query_gid_type" => query::ibv_query_gid_type,
    }
    "IBVERBS_PRIVATE_57" {
        "ibv_query_gid_type" => query::ibv_query_gid_type,
        "ibv_wr_opcode_str" => strings::ibv_wr_opcode_str,
    }
    "IBVERBS_PRIVATE_59" {
        "ibv_query_gid_type" => query::ibv_query_gid_type,
        "ibv_wr_opcode_str" => strings::ibv_wr_opcode_str,
    }
    "IBVERBS_PRIVATE_64" {
        "ibv_query_gid_type" => query::ibv_query_gid_type,
        "ibv_wr_opcode_str" => strings::ibv_wr_opcode_str,
    }
    "IBVERBS_PRIVATE_65" {
        "ibv_query_gid_type" => query::ibv_query_gid_type,
        "ibv_wr_opcode_str" => strings::ibv_wr_opcode_str,
    }
}
