/* Endpoints of libfabric that echo messages, and one that sends to several of them; on the drop-in libraries.
 *
 *     libfabric_xrc serve HOST PORT         serves there until it gets a message that ends it
 *     libfabric_xrc ask HOST PORT...        sends to each, in turn and all at once, and compares the replies
 *
 * FI_VERBS_PREFER_XRC=1 FI_OFI_RXM_USE_SRX=1 and a file in FI_VERBS_XRCD_FILENAME make the provider use XRC. All servers
 * of a host then share one connection of the initiator: it connects to the first, asks the others for their QPs in port
 * space UDP (SIDR), and they open the first one's TGT. */

#include <arpa/inet.h>
#include <poll.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST 1000000
#define SERVERS 8
#define ROUNDS 20

struct message {
    struct sockaddr_in from;
    uint32_t what; /* TEXT or END */
    uint32_t length;
    uint8_t text[MOST];
};

enum { TEXT, END };

static struct fid_domain *domain;
static struct fid_ep *endpoint;
static struct fid_av *peers;
static struct fid_cq *queue;
static struct message sending, received[SERVERS];
static void *sending_key, *received_key;
static struct sockaddr_in own;

static void check(const char *what, ssize_t result) {
    if (result >= 0)
        return;
    fprintf(stderr, "%s: %s\n", what, fi_strerror((int)-result));
    exit(1);
}

static void expect(int holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "does not hold: %s\n", what);
    exit(1);
}

/* Waits for one completion of a kind, FI_SEND or FI_RECV, and counts the other kind. */
static struct fi_cq_msg_entry completed(uint64_t kind) {
    static struct fi_cq_msg_entry kept[2][SERVERS];
    static int count[2];
    time_t until = time(NULL) + 60;
    int wanted = kind == FI_RECV;
    while (count[wanted] == 0) {
        struct fi_cq_msg_entry entry;
        ssize_t got = fi_cq_read(queue, &entry, 1);
        if (got == -FI_EAVAIL) {
            struct fi_cq_err_entry error = {0};
            fi_cq_readerr(queue, &error, 0);
            check("completion", -error.err);
        }
        if (got == -FI_EAGAIN) {
            expect(time(NULL) < until, "a request completes within a minute");
            poll(NULL, 0, 0);
            continue;
        }
        check("fi_cq_read", got);
        int is = (entry.flags & FI_RECV) != 0;
        expect(count[is] < SERVERS, "no more requests complete than were posted");
        kept[is][count[is]++] = entry;
    }
    return kept[wanted][--count[wanted]];
}

static void *registered(void *memory, size_t length, uint64_t key) {
    struct fid_mr *region;
    check("fi_mr_reg", fi_mr_reg(domain, memory, length, FI_SEND | FI_RECV, 0, key, 0, &region, NULL));
    return fi_mr_desc(region);
}

static void open_all(const char *host, const char *port, uint64_t flags) {
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fid_fabric *fabric;
    struct fi_av_attr av = {.type = FI_AV_MAP};
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_MSG, .size = 256};
    size_t length = sizeof own;
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT;
    hints->addr_format = FI_SOCKADDR_IN;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup("verbs;ofi_rxm");
    check("fi_getinfo", fi_getinfo(FI_VERSION(1, 14), host, port, flags, hints, &info));
    expect(strstr(info->domain_attr->name, "-xrc") != NULL, "the domain uses XRC");
    check("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
    check("fi_domain", fi_domain(fabric, info, &domain, NULL));
    check("fi_endpoint", fi_endpoint(domain, info, &endpoint, NULL));
    check("fi_av_open", fi_av_open(domain, &av, &peers, NULL));
    check("fi_cq_open", fi_cq_open(domain, &cq, &queue, NULL));
    check("fi_ep_bind", fi_ep_bind(endpoint, &peers->fid, 0));
    check("fi_ep_bind", fi_ep_bind(endpoint, &queue->fid, FI_SEND | FI_RECV));
    check("fi_enable", fi_enable(endpoint));
    check("fi_getname", fi_getname(&endpoint->fid, &own, &length));
    sending_key = registered(&sending, sizeof sending, 1);
    received_key = registered(received, sizeof received, 2);
}

static fi_addr_t known(const struct sockaddr_in *address) {
    fi_addr_t peer;
    expect(fi_av_insert(peers, address, 1, &peer, 0, NULL) == 1, "an address can be inserted");
    return peer;
}

static void post_receive(int place) {
    static struct fi_context contexts[SERVERS];
    ssize_t result;
    do {
        result = fi_recv(endpoint, &received[place], sizeof received[place], received_key, FI_ADDR_UNSPEC, &contexts[place]);
    } while (result == -FI_EAGAIN);
    check("fi_recv", result);
}

/* Tries again until the connection exists; libfabric makes progress when the queue is read. */
static void send_to(fi_addr_t peer) {
    static struct fi_context context;
    time_t until = time(NULL) + 60;
    for (;;) {
        size_t length = offsetof(struct message, text) + sending.length;
        ssize_t result = fi_send(endpoint, &sending, length, sending_key, peer, &context);
        if (result != -FI_EAGAIN) {
            check("fi_send", result);
            break;
        }
        expect(time(NULL) < until, "a peer is reached within a minute");
        fi_cq_read(queue, NULL, 0);
        poll(NULL, 0, 0);
    }
    completed(FI_SEND);
}

static void serve(const char *host, const char *port) {
    open_all(host, port, FI_SOURCE);
    printf("ready\n");
    fflush(stdout);
    fi_addr_t client = FI_ADDR_UNSPEC;
    for (uint32_t what = TEXT; what != END;) {
        post_receive(0);
        completed(FI_RECV);
        what = received[0].what;
        expect(received[0].length <= MOST, "no message is too long");
        sending = received[0];
        for (uint32_t at = 0; at < sending.length; at++)
            sending.text[at] ^= 0xff;
        sending.from = own;
        if (client == FI_ADDR_UNSPEC)
            client = known(&received[0].from);
        send_to(client);
    }
    printf("ok\n");
}

static void fill(uint32_t what, uint32_t length, uint32_t seed) {
    sending.from = own;
    sending.what = what;
    sending.length = length;
    for (uint32_t at = 0; at < length; at++)
        sending.text[at] = (uint8_t)(at * 7 + seed);
}

static void came_back(int place, uint32_t length, uint32_t seed) {
    expect(received[place].length == length, "a message keeps its length");
    for (uint32_t at = 0; at < length; at++)
        expect(received[place].text[at] == (uint8_t)~(at * 7 + seed), "each byte comes back inverted");
}

static void ask(const char *host, char **ports, int count) {
    static const uint32_t lengths[] = {0, 1, 64, 4000, 20000, MOST};
    fi_addr_t servers[SERVERS];
    expect(count <= SERVERS, "there are not too many servers");
    open_all(host, ports[0], 0);
    for (int place = 0; place < count; place++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(ports[place]))};
        expect(inet_pton(AF_INET, host, &at.sin_addr) == 1, "the host is an IPv4 address");
        servers[place] = known(&at);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t length = lengths[round % (sizeof lengths / sizeof *lengths)];
        for (int place = 0; place < count; place++) {
            fill(TEXT, length, round + (uint32_t)place);
            post_receive(0);
            send_to(servers[place]);
            completed(FI_RECV);
            came_back(0, length, round + (uint32_t)place);
        }
        fill(TEXT, length, round);
        for (int place = 0; place < count; place++)
            post_receive(place);
        for (int place = 0; place < count; place++)
            send_to(servers[place]);
        for (int place = 0; place < count; place++)
            completed(FI_RECV);
        for (int place = 0; place < count; place++)
            came_back(place, length, round);
    }
    /* The first last: it made the TGT of all of them, and what it has not answered when it ends is asked for again, of a
     * server that may have ended too. */
    for (int place = count - 1; place >= 0; place--) {
        fill(END, 0, 0);
        post_receive(0);
        send_to(servers[place]);
        completed(FI_RECV);
    }
    /* An acknowledgement of the last reply may be lost: it is repeated as long as this process lives. */
    poll(NULL, 0, 2000);
    printf("ok\n");
}

int main(int count, char **words) {
    if (count == 4 && strcmp(words[1], "serve") == 0)
        serve(words[2], words[3]);
    else if (count >= 4 && strcmp(words[1], "ask") == 0)
        ask(words[2], words + 3, count - 3);
    else
        expect(0, "serve HOST PORT, or ask HOST PORT...");
    return 0;
}
