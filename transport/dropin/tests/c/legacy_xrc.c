/*
 * The XRC calls of OFED 1.x from three processes of one XRC domain:
 *   maker   makes the domain, an SRQ and the receive QP, connects the QP; unregisters and exits early;
 *   joiner  opens the domain by the same file, has an SRQ of its own, registers, and outlives the maker;
 *   sender  sends to both SRQs through the one receive QP.
 * legacy_xrc FILE: prints "ok" and exits with 0, or prints what was wrong and exits with 1.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#include <infiniband/xrc_legacy.h>

static const char *role = "start";

#define CHECK(condition)                                                                            \
	do {                                                                                        \
		if (!(condition)) {                                                                 \
			fprintf(stderr, "%s, line %d: %s; errno %d\n", role, __LINE__, #condition, errno); \
			exit(1);                                                                    \
		}                                                                                   \
	} while (0)

enum { BYTES = 4096, ROUNDS = 100 };

struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	union ibv_gid gid;
	char buffer[BYTES];
};

/* What the processes send each other. */
struct card {
	uint32_t qpn, srqn;
	union ibv_gid gid;
};

static void say(int to, const struct card *card)
{
	CHECK(write(to, card, sizeof *card) == sizeof *card);
}

static struct card hear(int from)
{
	struct card card;
	CHECK(read(from, &card, sizeof card) == sizeof card);
	return card;
}

static void begin(struct side *side, const char *name)
{
	role = name;
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	side->context = ibv_open_device(list[0]);
	CHECK(side->context);
	ibv_free_device_list(list);
	side->pd = ibv_alloc_pd(side->context);
	side->cq = ibv_create_cq(side->context, 256, NULL, NULL, 0);
	CHECK(side->pd && side->cq);
	side->mr = ibv_reg_mr(side->pd, side->buffer, BYTES, IBV_ACCESS_LOCAL_WRITE);
	CHECK(side->mr);
	CHECK(ibv_query_gid(side->context, 1, 0, &side->gid) == 0);
}

static void end(struct side *side)
{
	CHECK(ibv_dereg_mr(side->mr) == 0);
	CHECK(ibv_destroy_cq(side->cq) == 0);
	CHECK(ibv_dealloc_pd(side->pd) == 0);
	CHECK(ibv_close_device(side->context) == 0);
}

static struct ibv_wc next_completion(struct side *side)
{
	struct ibv_wc wc;
	int count;
	while ((count = ibv_poll_cq(side->cq, 1, &wc)) == 0)
		;
	CHECK(count == 1);
	CHECK(wc.status == IBV_WC_SUCCESS);
	return wc;
}

static struct ibv_srq *new_srq(struct side *side, struct ibv_xrc_domain *domain, uint32_t *number)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = ROUNDS, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_xrc_srq(side->pd, domain, side->cq, &init);
	CHECK(srq);
	CHECK(ibv_get_srq_num(srq, number) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_sge sge = { (uintptr_t)side->buffer, BYTES, side->mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = round, .sg_list = &sge, .num_sge = 1 }, *bad;
		CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
	}
	return srq;
}

static void receive(struct side *side, uint32_t qpn, int rounds, char letter)
{
	for (int round = 0; round < rounds; round++) {
		struct ibv_wc wc = next_completion(side);
		CHECK(wc.opcode == IBV_WC_RECV && wc.qp_num == qpn && wc.byte_len == BYTES);
		CHECK(side->buffer[0] == letter && side->buffer[BYTES - 1] == letter);
	}
}

static void to_init(struct ibv_qp_attr *attr, int *mask)
{
	memset(attr, 0, sizeof *attr);
	attr->qp_state = IBV_QPS_INIT;
	attr->port_num = 1;
	*mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
}

static void to_rtr(struct ibv_qp_attr *attr, int *mask, const struct card *peer)
{
	memset(attr, 0, sizeof *attr);
	attr->qp_state = IBV_QPS_RTR;
	attr->path_mtu = IBV_MTU_1024;
	attr->dest_qp_num = peer->qpn;
	attr->rq_psn = 7;
	attr->max_dest_rd_atomic = 1;
	attr->min_rnr_timer = 1;
	attr->ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1 };
	attr->ah_attr.grh.dgid = peer->gid;
	attr->ah_attr.grh.hop_limit = 64;
	*mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
}

static struct ibv_xrc_domain *open_domain(struct side *side, const char *path, int oflag)
{
	int fd = open(path, O_RDONLY);
	CHECK(fd >= 0);
	struct ibv_xrc_domain *domain = ibv_open_xrc_domain(side->context, fd, oflag);
	int error = errno;
	close(fd);
	errno = error;
	return domain;
}

static void maker(const char *path, int from_sender, int to_sender, int from_joiner, int to_joiner)
{
	static struct side side;
	struct card mine = { 0 }, sender;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int mask;

	begin(&side, "maker");
	CHECK(open_domain(&side, path, 0) == NULL && errno == EAGAIN);
	struct ibv_xrc_domain *domain = open_domain(&side, path, O_CREAT);
	CHECK(domain);
	CHECK(open_domain(&side, path, O_CREAT | O_EXCL) == NULL && errno == EINVAL);
	struct ibv_xrc_domain *other = ibv_open_xrc_domain(side.context, -1, O_CREAT);
	CHECK(other);
	struct ibv_srq *srq = new_srq(&side, domain, &mine.srqn);

	struct ibv_xrc_rcv_init_attr none = { NULL }, in = { domain };
	CHECK(ibv_create_xrc_rcv_qp(&none, &mine.qpn) == EINVAL);
	CHECK(ibv_create_xrc_rcv_qp(&in, &mine.qpn) == 0);
	CHECK(ibv_reg_xrc_rcv_qp(domain, mine.qpn) == EEXIST);
	CHECK(ibv_reg_xrc_rcv_qp(other, mine.qpn) == EINVAL);
	CHECK(ibv_unreg_xrc_rcv_qp(other, mine.qpn) == EINVAL);
	CHECK(ibv_close_xrc_domain(other) == 0);

	sender = hear(from_sender);
	to_init(&attr, &mask);
	CHECK(ibv_modify_xrc_rcv_qp(domain, mine.qpn ^ 0x800000, &attr, mask) == EINVAL);
	CHECK(ibv_modify_xrc_rcv_qp(domain, mine.qpn, &attr, mask) == 0);
	to_rtr(&attr, &mask, &sender);
	CHECK(ibv_modify_xrc_rcv_qp(domain, mine.qpn, &attr, mask) == 0);
	CHECK(ibv_query_xrc_rcv_qp(domain, mine.qpn, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTR && attr.dest_qp_num == sender.qpn);
	mine.gid = side.gid;
	say(to_joiner, &mine);
	hear(from_joiner); /* it is registered */
	say(to_sender, &mine);

	receive(&side, mine.qpn, ROUNDS, 'm');
	CHECK(ibv_close_xrc_domain(domain) == EBUSY); /* registered, and the SRQ exists */
	CHECK(ibv_unreg_xrc_rcv_qp(domain, mine.qpn) == 0);
	CHECK(ibv_unreg_xrc_rcv_qp(domain, mine.qpn) == EINVAL);
	CHECK(ibv_close_xrc_domain(domain) == EBUSY); /* the SRQ exists */
	CHECK(ibv_destroy_srq(srq) == 0);
	CHECK(ibv_close_xrc_domain(domain) == 0);
	end(&side);
}

static void joiner(const char *path, int from_maker, int to_maker, int from_sender, int to_sender, int from_parent)
{
	static struct side side;
	struct card theirs = hear(from_maker), mine = theirs;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int mask;

	begin(&side, "joiner");
	struct ibv_xrc_domain *domain = open_domain(&side, path, 0);
	CHECK(domain);
	struct ibv_srq *srq = new_srq(&side, domain, &mine.srqn);
	CHECK(mine.srqn != theirs.srqn);
	CHECK(ibv_unreg_xrc_rcv_qp(domain, theirs.qpn) == EINVAL);
	CHECK(ibv_reg_xrc_rcv_qp(domain, theirs.qpn ^ 0x800000) == EINVAL);
	CHECK(ibv_reg_xrc_rcv_qp(domain, theirs.qpn) == 0);
	CHECK(ibv_reg_xrc_rcv_qp(domain, theirs.qpn) == EEXIST);
	to_init(&attr, &mask);
	CHECK(ibv_modify_xrc_rcv_qp(domain, theirs.qpn, &attr, mask) == EINVAL); /* the maker has connected it first */
	CHECK(ibv_query_xrc_rcv_qp(domain, theirs.qpn, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RTR);
	say(to_maker, &mine);
	say(to_sender, &mine);

	receive(&side, theirs.qpn, ROUNDS / 2, 'j');
	hear(from_parent); /* the maker has exited */
	say(to_sender, &mine);
	receive(&side, theirs.qpn, ROUNDS / 2, 'k');
	hear(from_sender); /* it has all replies */
	CHECK(ibv_close_xrc_domain(domain) == EBUSY);
	CHECK(ibv_unreg_xrc_rcv_qp(domain, theirs.qpn) == 0);
	CHECK(ibv_reg_xrc_rcv_qp(domain, theirs.qpn) == EINVAL); /* the last registration has ended */
	CHECK(ibv_destroy_srq(srq) == 0);
	CHECK(ibv_close_xrc_domain(domain) == 0);
	end(&side);
}

static void send_all(struct side *side, struct ibv_qp *qp, uint32_t srqn, int rounds, char letter)
{
	memset(side->buffer, letter, BYTES);
	for (int round = 0; round < rounds; round++) {
		struct ibv_sge sge = { (uintptr_t)side->buffer, BYTES, side->mr->lkey };
		struct ibv_send_wr wr = {
			.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
			.qp_type.xrc.remote_srqn = srqn,
		}, *bad;
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
		CHECK(next_completion(side).opcode == IBV_WC_SEND);
	}
}

static void sender(int from_maker, int to_maker, int from_joiner, int to_joiner)
{
	static struct side side;
	struct card mine = { 0 }, maker, joiner;
	struct ibv_qp_attr attr;
	int mask;

	begin(&side, "sender");
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = side.pd, .send_cq = side.cq,
		.cap = { .max_send_wr = 16, .max_send_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp_ex(side.context, &init);
	CHECK(qp);
	mine.qpn = qp->qp_num;
	mine.gid = side.gid;
	say(to_maker, &mine);
	joiner = hear(from_joiner);
	maker = hear(from_maker);

	to_init(&attr, &mask);
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
	to_rtr(&attr, &mask, &maker);
	CHECK(ibv_modify_qp(qp, &attr, mask & ~(IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) == 0);
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 7;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);

	send_all(&side, qp, joiner.srqn, ROUNDS / 2, 'j');
	send_all(&side, qp, maker.srqn, ROUNDS, 'm');
	hear(from_joiner); /* the maker has exited */
	send_all(&side, qp, joiner.srqn, ROUNDS / 2, 'k');
	say(to_joiner, &mine);
	CHECK(ibv_destroy_qp(qp) == 0);
	end(&side);
}

/* Starts a process that runs one of the functions above, with that function's pipes. */
#define PROCESS(call)             \
	({                        \
		pid_t pid = fork(); \
		CHECK(pid >= 0);  \
		if (pid == 0) {   \
			call;     \
			exit(0);  \
		}                 \
		pid;              \
	})

int main(int count, char **arguments)
{
	enum { MAKER_SENDER, SENDER_MAKER, MAKER_JOINER, JOINER_MAKER, JOINER_SENDER, SENDER_JOINER, PARENT_JOINER, PIPES };
	int pipes[PIPES][2], status, failed = 0;
	struct card gone = { 0 };

	CHECK(count == 2);
	for (int at = 0; at < PIPES; at++)
		CHECK(pipe(pipes[at]) == 0);
#define FROM(at) pipes[at][0]
#define TO(at) pipes[at][1]
	pid_t children[] = {
		PROCESS(maker(arguments[1], FROM(SENDER_MAKER), TO(MAKER_SENDER), FROM(JOINER_MAKER), TO(MAKER_JOINER))),
		PROCESS(joiner(arguments[1], FROM(MAKER_JOINER), TO(JOINER_MAKER), FROM(SENDER_JOINER), TO(JOINER_SENDER),
			       FROM(PARENT_JOINER))),
		PROCESS(sender(FROM(MAKER_SENDER), TO(SENDER_MAKER), FROM(JOINER_SENDER), TO(SENDER_JOINER))),
	};
	for (int left = 3; left > 0; left--) {
		pid_t ended = wait(&status);
		if (ended == children[0] && status == 0)
			say(TO(PARENT_JOINER), &gone);
		for (int at = 0; at < 3; at++) {
			if (children[at] == ended)
				children[at] = 0;
			else if (status != 0 && children[at] != 0)
				kill(children[at], SIGKILL); /* it would wait for the other indefinitely */
		}
		failed |= status;
	}
	if (!failed)
		puts("ok");
	return failed != 0;
}
