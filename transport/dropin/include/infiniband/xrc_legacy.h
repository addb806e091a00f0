/*
 * The XRC calls of OFED 1.x, for programs that were written for them, on the drop-in libibverbs.
 *
 * Include it after <infiniband/verbs.h>, whose structures are unchanged. So a source for OFED 1.x needs these changes
 * (docs/book/src/reference/software-device.md shows each edit):
 *   - struct ibv_xrc_domain is opaque;
 *   - ibv_create_xrc_rcv_qp takes a structure of its own;
 *   - the number of an SRQ comes from ibv_get_srq_num, not from a member of struct ibv_srq;
 *   - the sender is a QP of type IBV_QPT_XRC_SEND, without a domain, and wr.qp_type.xrc.remote_srqn names the SRQ.
 *
 * The calls return 0 or a positive errno; those that make an object return NULL and set errno if they fail. ENOSYS: the
 * device has no XRC.
 */
#ifndef TRUNKLINE_XRC_LEGACY_H
#define TRUNKLINE_XRC_LEGACY_H

#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One open of an XRC domain. */
struct ibv_xrc_domain;

/* What ibv_create_xrc_rcv_qp reads. */
struct ibv_xrc_rcv_init_attr {
	struct ibv_xrc_domain *xrc_domain;
};

/*
 * Opens the XRC domain of the file's inode; O_CREAT and O_EXCL in oflag count. fd -1 makes a private domain.
 * EAGAIN: the domain does not exist and O_CREAT is not set; EINVAL: it exists and O_EXCL is set; EBADF.
 */
struct ibv_xrc_domain *ibv_open_xrc_domain(struct ibv_context *context, int fd, int oflag);

/* Closes the domain. EBUSY while an SRQ made in it exists, or this process is registered with a receive QP of it. */
int ibv_close_xrc_domain(struct ibv_xrc_domain *domain);

/* Makes an XRC SRQ whose receives complete into cq; ibv_destroy_srq destroys it, ibv_get_srq_num returns its number. */
struct ibv_srq *ibv_create_xrc_srq(struct ibv_pd *pd, struct ibv_xrc_domain *domain, struct ibv_cq *cq,
				   struct ibv_srq_init_attr *init);

/* Makes an XRC receive QP, which its number identifies, and registers this process with it. */
int ibv_create_xrc_rcv_qp(struct ibv_xrc_rcv_init_attr *init, uint32_t *number);

/* RESET to INIT, and INIT to RTR, in which it receives. EINVAL: not registered, another domain, or not such a transition. */
int ibv_modify_xrc_rcv_qp(struct ibv_xrc_domain *domain, uint32_t number, struct ibv_qp_attr *attr, int mask);

int ibv_query_xrc_rcv_qp(struct ibv_xrc_domain *domain, uint32_t number, struct ibv_qp_attr *attr, int mask,
			 struct ibv_qp_init_attr *init);

/* Registers this process. EINVAL: the domain has no receive QP of that number; EEXIST: registered already. */
int ibv_reg_xrc_rcv_qp(struct ibv_xrc_domain *domain, uint32_t number);

/* Ends the registration; the QP is destroyed with the last one of all processes. A process that exits unregisters. */
int ibv_unreg_xrc_rcv_qp(struct ibv_xrc_domain *domain, uint32_t number);

#ifdef __cplusplus
}
#endif

#endif
