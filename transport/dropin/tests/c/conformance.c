/*
 * Items of the XRC contract (docs/book/src/reference/xrc-contract.md) that only the C interface can show: masks, NULLs,
 * errno, handles, acknowledgements. `conformance ITEM` prints "held", or what differs and exits with
 * status 1. Written for Debian's headers; run by conformance_c.rs.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void fail(int line, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	printf("line %d: ", line);
	vprintf(format, arguments);
	printf("\n");
	va_end(arguments);
	exit(1);
}

#define NEED(holds) ((holds) ? (void)0 : fail(__LINE__, "%s does not hold (errno %d)", #holds, errno))
#define EQUAL(got, due)                                                                         \
	do {                                                                                    \
		long long g_ = (long long)(got), d_ = (long long)(due);                         \
		if (g_ != d_)                                                                   \
			fail(__LINE__, "%s is %lld instead of %lld", #got, g_, d_);             \
	} while (0)
/* A call that returns NULL with this errno. */
#define REFUSED(call, due)                                                                      \
	do {                                                                                    \
		errno = 0;                                                                      \
		void *got_ = (call);                                                            \
		if (got_ || errno != (due))                                                     \
			fail(__LINE__, "%s: %s, errno %d instead of %d", #call,                 \
			     got_ ? "allowed" : "refused", errno, (due));                       \
	} while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static union ibv_gid gid;

static void pause_ms(long milliseconds)
{
	struct timespec time = { milliseconds / 1000, milliseconds % 1000 * 1000000 };
	nanosleep(&time, NULL);
}

static void open_device(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	NEED(list && count > 0);
	context = ibv_open_device(list[0]);
	NEED(context);
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	NEED(pd && cq);
	EQUAL(ibv_query_gid(context, 1, 0, &gid), 0);
}

static struct ibv_xrcd *open_xrcd(int fd, int oflags)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = oflags };
	return ibv_open_xrcd(context, &attr);
}

static struct ibv_xrcd *private_xrcd(void)
{
	struct ibv_xrcd *xrcd = open_xrcd(-1, O_CREAT);
	NEED(xrcd);
	return xrcd;
}

static int file(void)
{
	char name[] = "/tmp/trunkline-conformance-XXXXXX";
	int fd = mkstemp(name);
	NEED(fd >= 0);
	unlink(name);
	return fd;
}

static struct ibv_srq_init_attr_ex srq_attr(struct ibv_xrcd *xrcd)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = { .max_wr = 16, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
			     IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = cq };
	return attr;
}

static struct ibv_srq *xrc_srq(struct ibv_xrcd *xrcd)
{
	struct ibv_srq_init_attr_ex attr = srq_attr(xrcd);
	struct ibv_srq *srq = ibv_create_srq_ex(context, &attr);
	NEED(srq);
	return srq;
}

static struct ibv_qp_init_attr_ex tgt_attr(struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	return attr;
}

static struct ibv_qp *tgt(struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex attr = tgt_attr(xrcd);
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	NEED(qp);
	return qp;
}

static struct ibv_qp_init_attr_ex ini_attr(void)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd, .send_cq = cq,
		.cap = { .max_send_wr = 16, .max_send_sge = 1 } };
	return attr;
}

static struct ibv_qp *ini(void)
{
	struct ibv_qp_init_attr_ex attr = ini_attr();
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	NEED(qp);
	return qp;
}

#define INIT_MASK (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define RTR_MASK                                                                                \
	(IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |         \
	 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define RTS_MASK                                                                                \
	(IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |  \
	 IBV_QP_MAX_QP_RD_ATOMIC)

static struct ibv_qp_attr values(uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		.path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 7, .sq_psn = 7,
		.max_dest_rd_atomic = 1, .max_rd_atomic = 1, .min_rnr_timer = 1,
		.timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } } };
	return attr;
}

static int step(struct ibv_qp *qp, uint32_t peer, enum ibv_qp_state state, int mask)
{
	struct ibv_qp_attr attr = values(peer);
	attr.qp_state = state;
	return ibv_modify_qp(qp, &attr, mask);
}

/* With the masks of RC, which contract E3 allows. */
static void bring_up(struct ibv_qp *qp, uint32_t peer)
{
	EQUAL(step(qp, peer, IBV_QPS_INIT, INIT_MASK), 0);
	EQUAL(step(qp, peer, IBV_QPS_RTR, RTR_MASK), 0);
	EQUAL(step(qp, peer, IBV_QPS_RTS, RTS_MASK), 0);
}

static struct ibv_wc completion(struct ibv_cq *of)
{
	struct ibv_wc wc = { 0 };
	for (int turn = 0; turn < 10000; turn++) {
		int got = ibv_poll_cq(of, 1, &wc);
		NEED(got >= 0);
		if (got)
			return wc;
		pause_ms(1);
	}
	fail(__LINE__, "no completion came");
	return wc;
}

static uint8_t memory[4096];

static struct ibv_mr *region(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	NEED(mr);
	return mr;
}

static void receive(struct ibv_srq *srq, struct ibv_mr *mr, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)memory + 2048, 64, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	EQUAL(ibv_post_srq_recv(srq, &wr, &bad), 0);
}

static uint32_t number_of(struct ibv_srq *srq)
{
	uint32_t number = 0;
	EQUAL(ibv_get_srq_num(srq, &number), 0);
	return number;
}

/* A send whose TGT refuses it. */
static void offend(struct ibv_qp *qp, uint32_t srq, struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED }, *bad = NULL;
	wr.wr.rdma.remote_addr = 16;
	wr.wr.rdma.rkey = mr->rkey ^ 0x5500;
	wr.qp_type.xrc.remote_srqn = srq;
	EQUAL(ibv_post_send(qp, &wr, &bad), 0);
	EQUAL(completion(cq).status, IBV_WC_REM_ACCESS_ERR);
}

/* The next event of this kind. */
static struct ibv_async_event event(enum ibv_event_type type)
{
	struct ibv_async_event got;
	for (;;) {
		EQUAL(ibv_get_async_event(context, &got), 0);
		if (got.event_type == type)
			return got;
		ibv_ack_async_event(&got);
	}
}

static void a5(void)
{
	int fd = file(), closed = dup(fd);
	close(closed);
	REFUSED(open_xrcd(closed, O_CREAT), EBADF);
	REFUSED(open_xrcd(fd, 0), EAGAIN);
	REFUSED(open_xrcd(fd, O_EXCL), EAGAIN);
	struct ibv_xrcd *xrcd = open_xrcd(fd, O_CREAT | O_EXCL);
	NEED(xrcd);
	REFUSED(open_xrcd(fd, O_CREAT | O_EXCL), EINVAL);
	REFUSED(open_xrcd(fd, O_EXCL), EINVAL);
	NEED(open_xrcd(fd, 0));
	NEED(open_xrcd(fd, O_CREAT));
}

static void a7(void)
{
	int fd = file();
	REFUSED(open_xrcd(fd, O_RDWR | O_CLOEXEC), EAGAIN);
	NEED(open_xrcd(fd, O_RDWR | O_CREAT));
	NEED(open_xrcd(fd, O_RDWR));
}

static void a8(void)
{
	for (uint32_t mask = 0; mask < 16; mask++) {
		struct ibv_xrcd_init_attr attr = { .comp_mask = mask, .fd = -1, .oflags = O_CREAT };
		if (mask >= IBV_XRCD_INIT_ATTR_RESERVED)
			REFUSED(ibv_open_xrcd(context, &attr), EOPNOTSUPP);
		else if (mask != (IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS))
			REFUSED(ibv_open_xrcd(context, &attr), EINVAL);
		else
			NEED(ibv_open_xrcd(context, &attr));
	}
}

/* Run with TRUNKLINE_XRC=off. */
static void a9(void)
{
	struct ibv_device_attr attr;
	EQUAL(ibv_query_device(context, &attr), 0);
	NEED(!(attr.device_cap_flags & IBV_DEVICE_XRC));
	REFUSED(open_xrcd(file(), O_CREAT), EOPNOTSUPP);
	REFUSED(open_xrcd(-1, O_CREAT), EOPNOTSUPP);
	struct ibv_qp_init_attr_ex init = ini_attr();
	REFUSED(ibv_create_qp_ex(context, &init), EOPNOTSUPP);
	/* What does not need XRC works. */
	struct ibv_srq_init_attr basic = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &basic);
	NEED(srq);
	struct ibv_qp_init_attr rc = { .send_cq = cq, .recv_cq = cq, .srq = srq, .cap = { 1, 0, 1, 0, 0 }, .qp_type = IBV_QPT_RC };
	NEED(ibv_create_qp(pd, &rc));
}

static void a13(void)
{
	struct ibv_xrcd *xrcd = private_xrcd();
	struct ibv_srq *srq = xrc_srq(xrcd);
	EQUAL(ibv_close_xrcd(xrcd), EBUSY);
	EQUAL(ibv_destroy_srq(srq), 0);
	EQUAL(ibv_close_xrcd(xrcd), 0);
}

static void a14(void)
{
	int fd = file();
	struct ibv_context *first = context;
	struct ibv_xrcd *xrcd = open_xrcd(fd, O_CREAT | O_EXCL);
	NEED(xrcd);
	xrc_srq(xrcd);
	tgt(xrcd);
	open_device();
	NEED(context != first);
	REFUSED(open_xrcd(fd, O_CREAT | O_EXCL), EINVAL);
	/* Closed with everything that is open on it. */
	EQUAL(ibv_close_device(first), 0);
	REFUSED(open_xrcd(fd, 0), EAGAIN);
	NEED(open_xrcd(fd, O_CREAT | O_EXCL));
}

static void a15(void)
{
	/* The first process opens, forks and exits; its child holds the domain until a pipe closes. */
	int fd = file(), opened[2], leave[2], ended[2];
	char byte = 0;
	NEED(!pipe(opened) && !pipe(leave) && !pipe(ended));
	pid_t first = fork();
	if (!first) {
		open_device();
		if (!open_xrcd(fd, O_CREAT))
			_exit(1);
		if (fork())
			_exit(0);
		/* The child of the process that has opened the domain. */
		close(leave[1]);
		if (write(opened[1], &byte, 1) != 1)
			_exit(1);
		while (read(leave[0], &byte, 1) > 0)
			;
		close(ended[1]);
		_exit(0);
	}
	int status = 0;
	NEED(waitpid(first, &status, 0) == first);
	EQUAL(status, 0);
	close(opened[1]);
	EQUAL(read(opened[0], &byte, 1), 1);
	open_device();
	REFUSED(open_xrcd(fd, O_CREAT | O_EXCL), EINVAL);
	close(leave[0]);
	close(leave[1]);
	close(ended[1]);
	/* It has exited when its end of this pipe is closed. */
	EQUAL(read(ended[0], &byte, 1), 0);
	for (int turn = 0; turn < 2000; turn++) {
		struct ibv_xrcd *again = open_xrcd(fd, 0);
		if (!again) {
			EQUAL(errno, EAGAIN);
			return;
		}
		EQUAL(ibv_close_xrcd(again), 0);
		pause_ms(1);
	}
	fail(__LINE__, "the domain outlives its last process");
}

static void c1(void)
{
	struct ibv_xrcd *xrcd = private_xrcd();
	struct ibv_qp_init_attr_ex attr = tgt_attr(xrcd);
	attr.comp_mask = 0;
	REFUSED(ibv_create_qp_ex(context, &attr), EINVAL);
	attr = tgt_attr(NULL);
	REFUSED(ibv_create_qp_ex(context, &attr), EINVAL);
	attr = tgt_attr(xrcd);
	attr.comp_mask |= 1u << 20;
	NEED(!ibv_create_qp_ex(context, &attr));
	NEED(errno == EINVAL || errno == EOPNOTSUPP);
	NEED(tgt(xrcd));
}

static struct ibv_qp *open_qp(struct ibv_xrcd *xrcd, uint32_t number, uint32_t mask, enum ibv_qp_type type)
{
	struct ibv_qp_open_attr attr = {
		.comp_mask = mask, .qp_num = number, .xrcd = xrcd, .qp_context = &gid, .qp_type = type };
	return ibv_open_qp(context, &attr);
}

#define OPEN_MASK (IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE)

static void c4(void)
{
	struct ibv_xrcd *xrcd = private_xrcd();
	uint32_t number = tgt(xrcd)->qp_num;
	const uint32_t bits[] = { IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_XRCD, IBV_QP_OPEN_ATTR_TYPE };
	for (int bit = 0; bit < 3; bit++)
		REFUSED(open_qp(xrcd, number, OPEN_MASK & ~bits[bit], IBV_QPT_XRC_RECV), EINVAL);
	REFUSED(open_qp(xrcd, number, OPEN_MASK | IBV_QP_OPEN_ATTR_RESERVED, IBV_QPT_XRC_RECV), EOPNOTSUPP);
	REFUSED(open_qp(xrcd, number, OPEN_MASK, IBV_QPT_XRC_SEND), EINVAL);
	REFUSED(open_qp(xrcd, number ^ 0x800000, OPEN_MASK, IBV_QPT_XRC_RECV), EINVAL);
	REFUSED(open_qp(private_xrcd(), number, OPEN_MASK, IBV_QPT_XRC_RECV), EINVAL);
	NEED(open_qp(xrcd, number, OPEN_MASK, IBV_QPT_XRC_RECV));
}

static void c5(void)
{
	struct ibv_xrcd *xrcd = private_xrcd();
	struct ibv_qp *qp = tgt(xrcd);
	NEED(!qp->pd && !qp->send_cq && !qp->recv_cq && !qp->srq);
	struct ibv_qp *opened = open_qp(xrcd, qp->qp_num, OPEN_MASK | IBV_QP_OPEN_ATTR_CONTEXT, IBV_QPT_XRC_RECV);
	NEED(opened && opened != qp);
	EQUAL(opened->qp_num, qp->qp_num);
	EQUAL(opened->state, IBV_QPS_UNKNOWN);
	EQUAL(opened->qp_type, IBV_QPT_XRC_RECV);
	EQUAL(opened->events_completed, 0);
	NEED(opened->qp_context == &gid && opened->context == context);
	NEED(!opened->pd && !opened->send_cq && !opened->recv_cq && !opened->srq);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	EQUAL(ibv_query_qp(opened, &attr, IBV_QP_STATE, &init), 0);
	EQUAL(attr.qp_state, IBV_QPS_RESET);
	EQUAL(ibv_destroy_qp(qp), 0);
	EQUAL(ibv_destroy_qp(opened), 0);
	EQUAL(ibv_close_xrcd(xrcd), 0);
}

static void c10(void)
{
	struct ibv_xrcd *xrcd = private_xrcd();
	struct ibv_qp *target = tgt(xrcd), *sender = ini();
	bring_up(target, sender->qp_num);
	bring_up(sender, target->qp_num);
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send = NULL;
	EQUAL(ibv_post_send(target, &send, &bad_send), EINVAL);
	NEED(bad_send == &send);
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad = NULL;
	EQUAL(ibv_post_recv(target, &recv, &bad), EINVAL);
	NEED(bad == &recv);
	bad = NULL;
	EQUAL(ibv_post_recv(sender, &recv, &bad), EINVAL);
	NEED(bad == &recv);
}

static void c11(void)
{
	struct ibv_qp_init_attr_ex attr = ini_attr();
	attr.srq = xrc_srq(private_xrcd());
	REFUSED(ibv_create_qp_ex(context, &attr), EINVAL);
	attr = ini_attr();
	attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
	attr.xrcd = private_xrcd();
	REFUSED(ibv_create_qp_ex(context, &attr), EINVAL);
	attr = ini_attr();
	attr.recv_cq = cq;
	NEED(ibv_create_qp_ex(context, &attr));
}

static void c13(void)
{
	struct ibv_qp_init_attr_ex attr = tgt_attr(private_xrcd());
	attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
	attr.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
	NEED(!ibv_create_qp_ex(context, &attr) && (errno == EINVAL || errno == EOPNOTSUPP));
	attr = ini_attr();
	attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
	attr.create_flags = IBV_QP_CREATE_SCATTER_FCS;
	NEED(!ibv_create_qp_ex(context, &attr) && (errno == EINVAL || errno == EOPNOTSUPP));
	struct ibv_rwq_ind_table table = { .context = context };
	attr = ini_attr();
	attr.comp_mask |= IBV_QP_INIT_ATTR_IND_TABLE;
	attr.rwq_ind_tbl = &table;
	NEED(!ibv_create_qp_ex(context, &attr) && (errno == EINVAL || errno == EOPNOTSUPP));
}

static void d1(void)
{
	struct ibv_xrcd *xrcd = private_xrcd();
	const uint32_t needed[] = { IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQ_INIT_ATTR_CQ };
	for (int bit = 0; bit < 3; bit++) {
		struct ibv_srq_init_attr_ex attr = srq_attr(xrcd);
		attr.comp_mask &= ~needed[bit];
		REFUSED(ibv_create_srq_ex(context, &attr), EINVAL);
	}
	struct ibv_srq_init_attr_ex attr = srq_attr(xrcd);
	attr.comp_mask |= IBV_SRQ_INIT_ATTR_RESERVED;
	REFUSED(ibv_create_srq_ex(context, &attr), EOPNOTSUPP);
	attr = srq_attr(xrcd);
	attr.comp_mask &= ~IBV_SRQ_INIT_ATTR_TYPE;
	struct ibv_srq *basic = ibv_create_srq_ex(context, &attr);
	uint32_t number;
	NEED(basic && ibv_get_srq_num(basic, &number));
}

static void d2(void)
{
	struct ibv_xrcd *xrcd = private_xrcd();
	struct ibv_srq *srq = xrc_srq(xrcd);
	EQUAL(ibv_destroy_cq(cq), EBUSY);
	EQUAL(ibv_dealloc_pd(pd), EBUSY);
	EQUAL(ibv_close_xrcd(xrcd), EBUSY);
	EQUAL(ibv_destroy_srq(srq), 0);
	EQUAL(ibv_destroy_cq(cq), 0);
	EQUAL(ibv_dealloc_pd(pd), 0);
	EQUAL(ibv_close_xrcd(xrcd), 0);
}

static void d6(void)
{
	struct ibv_srq *srq = xrc_srq(private_xrcd());
	struct ibv_srq_attr attr = { .srq_limit = 4 };
	EQUAL(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	struct ibv_srq_attr got = { 0 };
	EQUAL(ibv_query_srq(srq, &got), 0);
	EQUAL(got.srq_limit, 4);
	NEED(got.max_wr >= 16 && got.max_sge >= 1);
	attr.srq_limit = got.max_wr + 1;
	EQUAL(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL);
	attr.srq_limit = 0;
	EQUAL(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
}

static void d7(void)
{
	struct ibv_device_attr device;
	EQUAL(ibv_query_device(context, &device), 0);
	NEED(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE);
	struct ibv_srq *srq = xrc_srq(private_xrcd());
	struct ibv_srq_attr attr = { .max_wr = 100 }, got = { 0 };
	EQUAL(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), 0);
	EQUAL(ibv_query_srq(srq, &got), 0);
	NEED(got.max_wr >= 100);
	attr.max_wr = device.max_srq_wr + 1;
	EQUAL(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EINVAL);
}

static void e1(void)
{
	/* Attributes that only the C interface has. */
	struct ibv_qp *target = tgt(private_xrcd()), *sender = ini();
	struct ibv_qp *both[] = { target, sender };
	for (int which = 0; which < 2; which++) {
		struct ibv_qp *qp = both[which];
		uint32_t peer = both[!which]->qp_num;
		EQUAL(step(qp, peer, IBV_QPS_INIT, INIT_MASK | IBV_QP_QKEY), EINVAL);
		EQUAL(step(qp, peer, IBV_QPS_INIT, INIT_MASK | IBV_QP_EN_SQD_ASYNC_NOTIFY), EINVAL);
		EQUAL(step(qp, peer, IBV_QPS_INIT, INIT_MASK | IBV_QP_CAP), EINVAL);
		EQUAL(step(qp, peer, IBV_QPS_INIT, INIT_MASK), 0);
		EQUAL(step(qp, peer, IBV_QPS_RTR, RTR_MASK | IBV_QP_PATH_MIG_STATE), EINVAL);
		EQUAL(step(qp, peer, IBV_QPS_RTR, RTR_MASK), 0);
		EQUAL(step(qp, peer, IBV_QPS_RTS, RTS_MASK | IBV_QP_QKEY), EINVAL);
		EQUAL(step(qp, peer, IBV_QPS_RTS, RTS_MASK), 0);
		EQUAL(step(qp, peer, IBV_QPS_SQD, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
		EQUAL(step(qp, peer, IBV_QPS_RTS, IBV_QP_STATE), 0);
		EQUAL(step(qp, peer, IBV_QPS_ERR, IBV_QP_STATE), 0);
	}
}

static void f6(void)
{
	struct ibv_xrcd *xrcd = private_xrcd();
	struct ibv_cq *receive_cq = cq;
	struct ibv_srq *srq = xrc_srq(xrcd);
	struct ibv_mr *mr = region();
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex attr = ini_attr();
	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
			      IBV_QP_EX_WITH_RDMA_READ;
	struct ibv_qp *sender = ibv_create_qp_ex(context, &attr), *target = tgt(xrcd);
	NEED(sender);
	bring_up(target, sender->qp_num);
	bring_up(sender, target->qp_num);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(sender);
	NEED(ex);
	receive(srq, mr, 5);
	memcpy(memory, "by way of ibv_wr", 16);
	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_imm(ex, htobe32(99));
	ibv_wr_set_xrc_srqn(ex, number_of(srq));
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 16);
	ex->wr_id = 2;
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory + 1024);
	ibv_wr_set_xrc_srqn(ex, number_of(srq));
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 16);
	EQUAL(ibv_wr_complete(ex), 0);
	for (uint64_t wr_id = 1; wr_id <= 2; wr_id++) {
		struct ibv_wc wc = completion(cq);
		EQUAL(wc.status, IBV_WC_SUCCESS);
		EQUAL(wc.wr_id, wr_id);
	}
	struct ibv_wc wc = completion(receive_cq);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	EQUAL(wc.wr_id, 5);
	EQUAL(wc.byte_len, 16);
	EQUAL(wc.qp_num, target->qp_num);
	NEED(wc.wc_flags & IBV_WC_WITH_IMM && be32toh(wc.imm_data) == 99);
	NEED(!memcmp(memory + 2048, memory, 16) && !memcmp(memory + 1024, memory, 16));
	/* Requests that were begun can be discarded. */
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_abort(ex);
	EQUAL(ibv_poll_cq(cq, 1, &wc), 0);
}

static void h1(void)
{
	struct ibv_xrcd *xrcd = private_xrcd();
	struct ibv_srq *srq = xrc_srq(xrcd);
	struct ibv_qp *creator = tgt(xrcd), *sender = ini();
	struct ibv_qp *opener = open_qp(xrcd, creator->qp_num, OPEN_MASK, IBV_QPT_XRC_RECV);
	NEED(opener);
	bring_up(creator, sender->qp_num);
	bring_up(sender, creator->qp_num);
	offend(sender, number_of(srq), region());
	struct ibv_async_event first = event(IBV_EVENT_QP_ACCESS_ERR), second = event(IBV_EVENT_QP_ACCESS_ERR);
	NEED(first.element.qp != second.element.qp);
	NEED(first.element.qp == creator || first.element.qp == opener);
	NEED(second.element.qp == creator || second.element.qp == opener);
	ibv_ack_async_event(&first);
	ibv_ack_async_event(&second);
	EQUAL(ibv_destroy_qp(creator), 0);
	EQUAL(ibv_destroy_qp(opener), 0);
}

static void h5(void)
{
	/* The limit event names the SRQ, not the TGT, which has none (contract D6). */
	struct ibv_xrcd *xrcd = private_xrcd();
	struct ibv_srq *srq = xrc_srq(xrcd);
	struct ibv_mr *mr = region();
	struct ibv_cq *receive_cq = cq;
	struct ibv_cq *small = cq = ibv_create_cq(context, 1, &gid, NULL, 0);
	NEED(small);
	struct ibv_qp *target = tgt(xrcd), *sender = ini();
	bring_up(target, sender->qp_num);
	bring_up(sender, target->qp_num);
	receive(srq, mr, 1);
	receive(srq, mr, 2);
	struct ibv_srq_attr limit = { .srq_limit = 2 };
	EQUAL(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad = NULL;
	wr.qp_type.xrc.remote_srqn = number_of(srq);
	EQUAL(ibv_post_send(sender, &wr, &bad), 0);
	EQUAL(completion(small).status, IBV_WC_SUCCESS);
	EQUAL(completion(receive_cq).wr_id, 1);
	struct ibv_async_event got = event(IBV_EVENT_SRQ_LIMIT_REACHED);
	NEED(got.element.srq == srq);
	ibv_ack_async_event(&got);

	/* The overflow of a CQ is reported for the CQ and for the QP that completes into it. */
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 1024;
	wr.wr.rdma.rkey = mr->rkey;
	for (int index = 0; index <= small->cqe; index++) {
		EQUAL(ibv_post_send(sender, &wr, &bad), 0);
		/* One request at a time, since the send queue may be smaller than the CQ. */
		pause_ms(2);
	}
	got = event(IBV_EVENT_CQ_ERR);
	NEED(got.element.cq == small && small->cq_context == &gid);
	ibv_ack_async_event(&got);
	got = event(IBV_EVENT_QP_FATAL);
	NEED(got.element.qp == sender);
	ibv_ack_async_event(&got);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	EQUAL(ibv_query_qp(sender, &attr, IBV_QP_STATE, &init), 0);
	EQUAL(attr.qp_state, IBV_QPS_ERR);
	EQUAL(ibv_query_qp(target, &attr, IBV_QP_STATE, &init), 0);
	EQUAL(attr.qp_state, IBV_QPS_RTS);
}

static atomic_int destroyed;

static void *destroy(void *qp)
{
	EQUAL(ibv_destroy_qp(qp), 0);
	atomic_store(&destroyed, 1);
	return NULL;
}

static void h6(void)
{
	struct ibv_xrcd *xrcd = private_xrcd();
	struct ibv_srq *srq = xrc_srq(xrcd);
	struct ibv_qp *target = tgt(xrcd), *sender = ini();
	bring_up(target, sender->qp_num);
	bring_up(sender, target->qp_num);
	offend(sender, number_of(srq), region());
	struct ibv_async_event got = event(IBV_EVENT_QP_ACCESS_ERR);
	NEED(got.element.qp == target);
	pthread_t thread;
	NEED(!pthread_create(&thread, NULL, destroy, target));
	/* Longer than a call that does not wait takes. */
	pause_ms(100);
	EQUAL(atomic_load(&destroyed), 0);
	ibv_ack_async_event(&got);
	NEED(!pthread_join(thread, NULL));
	EQUAL(atomic_load(&destroyed), 1);
}

static void k1(void)
{
	struct ibv_device_attr attr;
	EQUAL(ibv_query_device(context, &attr), 0);
	EQUAL(IBV_DEVICE_XRC, 1 << 20);
	NEED(attr.device_cap_flags & IBV_DEVICE_XRC);
}

static void k4(void)
{
	struct ibv_device_attr_ex attr;
	EQUAL(ibv_query_device_ex(context, NULL, &attr), 0);
	EQUAL(attr.odp_caps.general_caps, 0);
	EQUAL(attr.xrc_odp_caps, 0);
}

/* The two sides of a connection by librdmacm. */
static struct rdma_addrinfo *address_info(int passive, const char *address)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_IB }, *info = NULL;
	hints.ai_flags = passive ? RAI_PASSIVE : 0;
	hints.ai_qp_type = passive ? IBV_QPT_XRC_RECV : IBV_QPT_XRC_SEND;
	char port[16];
	snprintf(port, sizeof port, "%d", 7000 + getpid() % 2000);
	EQUAL(rdma_getaddrinfo((char *)address, port, &hints, &info), 0);
	return info;
}

static atomic_uint server_srq, server_ready;
static const char *server_address;

static void *serve(void *unused)
{
	struct rdma_addrinfo *info = address_info(1, server_address);
	struct rdma_cm_id *listener = NULL, *id = NULL;
	struct ibv_qp_init_attr qp = { .cap = { .max_recv_wr = 1, .max_recv_sge = 1 } };
	EQUAL(rdma_create_ep(&listener, info, NULL, NULL), 0);
	EQUAL(rdma_listen(listener, 1), 0);
	atomic_store(&server_ready, 1);
	EQUAL(rdma_get_request(listener, &id), 0);
	/* J4: an XRC SRQ in librdmacm's own domain, with a CQ of its own. */
	qp.qp_type = IBV_QPT_XRC_RECV;
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	EQUAL(rdma_create_srq(id, NULL, &srq), 0);
	NEED(id->srq && id->recv_cq);
	uint32_t number = number_of(id->srq);
	atomic_store(&server_srq, number);
	EQUAL(rdma_create_qp(id, NULL, &qp), 0);
	/* J2 */
	EQUAL(id->qp->qp_type, IBV_QPT_XRC_RECV);
	static uint8_t buffer[64];
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof buffer);
	NEED(mr);
	EQUAL(rdma_post_recv(id, buffer, buffer, sizeof buffer, mr), 0);
	uint32_t srq_number = htobe32(number);
	struct rdma_conn_param parameters = { .private_data = &srq_number, .private_data_len = sizeof srq_number };
	EQUAL(rdma_accept(id, &parameters), 0);
	struct ibv_wc wc;
	EQUAL(rdma_get_recv_comp(id, &wc), 1);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	NEED(!memcmp(buffer, "in the default domain", 22));
	/* J9: destroying this id sends no DREQ. */
	rdma_destroy_ep(id);
	return unused;
}

static void j2(void)
{
	server_address = getenv("TRUNKLINE_ADDRESS");
	NEED(server_address);
	pthread_t server;
	NEED(!pthread_create(&server, NULL, serve, NULL));
	while (!atomic_load(&server_ready))
		pause_ms(1);
	struct rdma_addrinfo *info = address_info(0, server_address);
	struct rdma_cm_id *id = NULL;
	struct ibv_qp_init_attr qp = { .cap = { .max_send_wr = 1, .max_send_sge = 1 }, .sq_sig_all = 1 };
	EQUAL(rdma_create_ep(&id, info, NULL, &qp), 0);
	EQUAL(id->qp->qp_type, IBV_QPT_XRC_SEND);
	struct rdma_conn_param parameters = { 0 };
	EQUAL(rdma_connect(id, &parameters), 0);
	/* J5 */
	uint32_t srq_number = be32toh(*(const uint32_t *)id->event->param.conn.private_data);
	EQUAL(srq_number, atomic_load(&server_srq));
	static uint8_t buffer[64] = "in the default domain";
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof buffer);
	struct ibv_sge sge = { (uintptr_t)buffer, sizeof buffer, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad = NULL;
	wr.qp_type.xrc.remote_srqn = srq_number;
	EQUAL(ibv_post_send(id->qp, &wr, &bad), 0);
	struct ibv_wc wc;
	EQUAL(rdma_get_send_comp(id, &wc), 1);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	NEED(!pthread_join(server, NULL));
	rdma_disconnect(id);
	rdma_destroy_ep(id);
}

static const struct {
	const char *name;
	void (*check)(void);
	int opens_itself;
} items[] = {
	{ "a5", a5, 0 }, { "a7", a7, 0 }, { "a8", a8, 0 }, { "a9", a9, 0 }, { "a13", a13, 0 }, { "a14", a14, 0 }, { "a15", a15, 1 },
	{ "c1", c1, 0 }, { "c4", c4, 0 }, { "c5", c5, 0 }, { "c10", c10, 0 }, { "c11", c11, 0 }, { "c13", c13, 0 },
	{ "d1", d1, 0 }, { "d2", d2, 0 }, { "d6", d6, 0 }, { "d7", d7, 0 },
	{ "e1", e1, 0 }, { "f6", f6, 0 }, { "h1", h1, 0 }, { "h5", h5, 0 }, { "h6", h6, 0 },
	{ "j2", j2, 1 },
	{ "k1", k1, 0 }, { "k4", k4, 0 },
};

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	for (size_t index = 0; index < sizeof items / sizeof *items; index++) {
		if (argc < 2 || strcmp(items[index].name, argv[1]))
			continue;
		if (!items[index].opens_itself)
			open_device();
		items[index].check();
		printf("held\n");
		return 0;
	}
	printf("usage: conformance ITEM\n");
	return 2;
}
