/*
 * Receivers that return from main as soon as they have polled their last message, and the sender of these messages.
 *   last_message HOST PORT COUNT   starts COUNT receivers in turn; each connects, receives, and destroys nothing.
 * The sender is stopped until the receiver has ended, so that it finds the acknowledgement and the end at once. Its
 * messages must complete. Exits with 0, or prints what was wrong and exits with 1.
 */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MESSAGES = 4, BYTES = 3000 };

static uint8_t memory[MESSAGES * BYTES];

static void check(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

static void expect(int completions, const struct ibv_wc *wc, int connection)
{
	check(completions == 1, "a completion");
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "connection %d, message %d: %s\n", connection, (int)(uintptr_t)wc->wr_id,
			ibv_wc_status_str(wc->status));
		exit(1);
	}
}

static struct rdma_cm_id *endpoint(const char *host, const char *port, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *info;
	struct ibv_qp_init_attr qp = { .cap = { MESSAGES, MESSAGES, 1, 1, 0 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	struct rdma_cm_id *id;
	check(rdma_getaddrinfo(host, port, &hints, &info) == 0, "rdma_getaddrinfo");
	check(rdma_create_ep(&id, info, NULL, &qp) == 0, "rdma_create_ep");
	return id;
}

static void send_to(struct rdma_cm_id *id, int connection)
{
	struct ibv_mr *mr = rdma_reg_msgs(id, memory, sizeof memory);
	struct ibv_wc wc;
	check(mr != NULL, "rdma_reg_msgs");
	check(rdma_accept(id, NULL) == 0, "rdma_accept");
	for (uintptr_t at = 0; at < MESSAGES; at++)
		check(rdma_post_send(id, (void *)at, memory + at * BYTES, BYTES, mr, 0) == 0, "rdma_post_send");
	check(raise(SIGSTOP) == 0, "raise");
	for (int at = 0; at < MESSAGES; at++)
		expect(rdma_get_send_comp(id, &wc), &wc, connection);
	rdma_disconnect(id);
	rdma_dereg_mr(mr);
	rdma_destroy_ep(id);
}

static int sender(const char *host, const char *port, int connections)
{
	struct rdma_cm_id *listener = endpoint(host, port, RAI_PASSIVE), *id;
	check(rdma_listen(listener, 1) == 0, "rdma_listen");
	check(raise(SIGSTOP) == 0, "raise");
	for (int connection = 0; connection < connections; connection++) {
		check(rdma_get_request(listener, &id) == 0, "rdma_get_request");
		send_to(id, connection);
	}
	rdma_destroy_ep(listener);
	return 0;
}

static int receiver(const char *host, const char *port)
{
	struct rdma_cm_id *id = endpoint(host, port, 0);
	struct ibv_mr *mr = rdma_reg_msgs(id, memory, sizeof memory);
	struct ibv_wc wc;
	check(mr != NULL, "rdma_reg_msgs");
	for (uintptr_t at = 0; at < MESSAGES; at++)
		check(rdma_post_recv(id, (void *)at, memory + at * BYTES, BYTES, mr) == 0, "rdma_post_recv");
	check(rdma_connect(id, NULL) == 0, "rdma_connect");
	for (int left = MESSAGES; left > 0;) {
		int polled = ibv_poll_cq(id->recv_cq, 1, &wc);
		if (polled != 0)
			expect(polled, &wc, 0), left--;
	}
	return 0;
}

/* Waits until a child has stopped or ended. Returns true if it has stopped. */
static int has_stopped(pid_t child)
{
	int status;
	check(waitpid(child, &status, WUNTRACED) == child, "waitpid");
	if (WIFSTOPPED(status))
		return 1;
	if (status != 0)
		exit(1);
	return 0;
}

int main(int argc, char **argv)
{
	check(argc == 4, "arguments");
	int connections = atoi(argv[3]), status, runs;
	pid_t sending = fork(), receiving;
	if (sending == 0)
		return sender(argv[1], argv[2], connections);
	check(has_stopped(sending), "the sender listens");
	kill(sending, SIGCONT);
	for (int connection = 0; connection < connections; connection++) {
		receiving = fork();
		if (receiving == 0)
			return receiver(argv[1], argv[2]);
		check(has_stopped(sending), "the sender has posted");
		/* A message that had not left when the sender stopped keeps the receiver waiting. */
		for (int wait = 0; (runs = waitpid(receiving, &status, WNOHANG) == 0) && wait < 100; wait++)
			usleep(10000);
		kill(sending, SIGCONT);
		check((!runs || waitpid(receiving, &status, 0) == receiving) && status == 0, "the receiver ends");
	}
	check(!has_stopped(sending), "the sender ends");
	return 0;
}
