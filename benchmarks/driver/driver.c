/* Load driver over librdkafka: one program for both brokers, one line of JSON on standard output as its result.
 *
 *   driver produce -b HOST:PORT -t TOPIC -n RECORDS -s BYTES -p PARTITIONS [-K KEYS] [-X name=value]...
 *   driver transact -b HOST:PORT -t TOPIC -n RECORDS -s BYTES -k RECORDS_PER_TRANSACTION [-X name=value]...
 *   driver consume -b HOST:PORT -t TOPIC -n RECORDS -p PARTITIONS [-k RECORDS_PER_TRANSACTION] [-X name=value]...
 *   driver latency -b HOST:PORT -t TOPIC -n RECORDS -s BYTES -r RECORDS_PER_SECOND [-w WARM_UP_RECORDS] [-P name=value]
 *                  [-C name=value]
 *
 * produce: records go to the partitions in turn; the time runs until every record is acknowledged. With -K each has one
 *          of so many keys, in no order.
 * transact: one transaction after the other, to one partition; the time runs until the last one is committed.
 * consume: all partitions from their beginning; the time runs from the first to the last record, and from the start.
 *          With -k each transaction of the partition is followed by its marker, which takes an offset.
 * latency: one thread sends at a fixed rate, another consumes by long polls; a record's time of sending is the time
 *          at which it was due, so a stall counts for every record it delays (no coordinated omission).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "rdkafka.h"

#define MAX_OPTIONS 64
#define TIMEOUT_MS 120000

struct options {
        const char *bootstrap;
        const char *topic;
        int64_t records;
        size_t size;
        int32_t partitions;
        int64_t rate;
        int64_t warm_up;
        int64_t each; /* records of a transaction */
        int64_t keys;
        const char *both[MAX_OPTIONS];
        int both_count;
        const char *producer[MAX_OPTIONS];
        int producer_count;
        const char *consumer[MAX_OPTIONS];
        int consumer_count;
};

static void die(const char *what, const char *why) {
        fprintf(stderr, "driver: %s: %s\n", what, why);
        exit(1);
}

static int64_t now_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double own_cpu_seconds(void) {
        struct rusage usage;
        getrusage(RUSAGE_SELF, &usage);
        return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
        char error[256];
        if (rd_kafka_conf_set(conf, name, value, error, sizeof(error)) != RD_KAFKA_CONF_OK)
                die(name, error);
}

static void set_all(rd_kafka_conf_t *conf, const char *const *options, int count) {
        for (int i = 0; i < count; i++) {
                char *copy = strdup(options[i]);
                char *equals = strchr(copy, '=');
                if (!equals)
                        die(copy, "name=value expected");
                *equals = '\0';
                set(conf, copy, equals + 1);
                free(copy);
        }
}

/* ---- deliveries ---- */

static _Atomic int64_t delivered;
static _Atomic int64_t refused;
static char first_error[256];
static int64_t *ack_ns;   /* latency runs: time from due to acknowledged, by record number */
static int64_t ack_limit; /* records in ack_ns */

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
        (void)rk;
        (void)opaque;
        if (message->err) {
                if (refused == 0)
                        snprintf(first_error, sizeof(first_error), "%s", rd_kafka_err2str(message->err));
                refused++;
                return;
        }
        if (ack_ns) {
                int64_t number, due;
                memcpy(&number, message->payload, sizeof(number));
                memcpy(&due, (char *)message->payload + sizeof(number), sizeof(due));
                if (number >= 0 && number < ack_limit)
                        ack_ns[number] = now_ns() - due;
        }
        delivered++;
}

static rd_kafka_t *make_producer(const struct options *o) {
        char error[256];
        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        set(conf, "bootstrap.servers", o->bootstrap);
        set(conf, "queue.buffering.max.messages", "1000000");
        set(conf, "queue.buffering.max.kbytes", "1048576");
        set_all(conf, o->both, o->both_count);
        set_all(conf, o->producer, o->producer_count);
        rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
        rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, sizeof(error));
        if (!rk)
                die("producer", error);
        return rk;
}

static rd_kafka_topic_t *make_topic(rd_kafka_t *rk, const char *name) {
        rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, name, NULL);
        const struct rd_kafka_metadata *metadata;
        if (!topic)
                die(name, rd_kafka_err2str(rd_kafka_last_error()));
        /* Connections and leaders are known before the clock starts. */
        rd_kafka_resp_err_t err = rd_kafka_metadata(rk, 0, topic, &metadata, 30000);
        if (err)
                die("metadata", rd_kafka_err2str(err));
        rd_kafka_metadata_destroy(metadata);
        return topic;
}

static uint64_t random_state = 88172645463325252ULL;

static uint64_t next_random(void) {
        random_state ^= random_state << 13;
        random_state ^= random_state >> 7;
        random_state ^= random_state << 17;
        return random_state;
}

/* Pseudo-random bytes, so that nothing on the way profits from their regularity; each record gets a window. */
static unsigned char *make_pool(const struct options *o) {
        size_t pool_size = o->size + 65536;
        unsigned char *pool = malloc(pool_size);
        for (size_t i = 0; i < pool_size; i++)
                pool[i] = (unsigned char)next_random();
        return pool;
}

static int produce(const struct options *o) {
        rd_kafka_t *rk = make_producer(o);
        rd_kafka_topic_t *topic = make_topic(rk, o->topic);
        unsigned char *pool = make_pool(o);
        int64_t began = now_ns();
        for (int64_t i = 0; i < o->records; i++) {
                void *payload = pool + (i * 101) % 65536;
                int32_t partition = (int32_t)(i % o->partitions);
                uint64_t key = o->keys ? next_random() % (uint64_t)o->keys : 0;
                size_t key_size = o->keys ? sizeof(key) : 0;
                while (rd_kafka_produce(topic, partition, RD_KAFKA_MSG_F_COPY, payload, o->size, key_size ? &key : NULL,
                                        key_size, NULL) == -1) {
                        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                                die("produce", rd_kafka_err2str(rd_kafka_last_error()));
                        rd_kafka_poll(rk, 10);
                }
                if ((i & 1023) == 0)
                        rd_kafka_poll(rk, 0);
        }
        int64_t deadline = now_ns() + (int64_t)TIMEOUT_MS * 1000000;
        while (delivered + refused < o->records && now_ns() < deadline)
                rd_kafka_poll(rk, 10);
        double seconds = (double)(now_ns() - began) / 1e9;
        int64_t open = o->records - delivered - refused;
        printf("{\"records\": %ld, \"bytes\": %ld, \"seconds\": %.6f, \"refused\": %ld, \"unanswered\": %ld, "
               "\"error\": \"%s\", \"client_cpu\": %.3f}\n",
               (long)delivered, (long)(delivered * (int64_t)o->size), seconds, (long)refused, (long)open, first_error,
               own_cpu_seconds());
        fflush(stdout);
        _exit(refused || open ? 1 : 0); /* nothing is left to flush; destroying the handle would only take time */
}

static int ascending(const void *a, const void *b) {
        int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
        return (x > y) - (x < y);
}

static void percentiles(const char *name, int64_t *values, int64_t count) {
        qsort(values, (size_t)count, sizeof(*values), ascending);
        const double at[] = {50, 90, 99, 99.9, 100};
        const char *label[] = {"p50", "p90", "p99", "p999", "max"};
        printf("\"%s\": {", name);
        for (int i = 0; i < 5; i++) {
                int64_t index = (int64_t)((double)count * at[i] / 100.0);
                if (index >= count)
                        index = count - 1;
                printf("%s\"%s\": %.1f", i ? ", " : "", label[i], count ? (double)values[index] / 1000.0 : -1.0);
        }
        printf("}");
}

static void require(rd_kafka_error_t *error, const char *what) {
        if (error)
                die(what, rd_kafka_error_string(error));
}

static int transact(const struct options *o) {
        rd_kafka_t *rk = make_producer(o);
        rd_kafka_topic_t *topic = make_topic(rk, o->topic);
        unsigned char *pool = make_pool(o);
        int64_t each = o->each ? o->each : 1, transactions = 0;
        int64_t *took = calloc((size_t)(o->records / each + 1), sizeof(*took));
        require(rd_kafka_init_transactions(rk, TIMEOUT_MS), "init_transactions");
        int64_t began = now_ns(), start = began;
        for (int64_t i = 0; i < o->records;) {
                require(rd_kafka_begin_transaction(rk), "begin_transaction");
                for (int64_t end = i + each; i < end && i < o->records; i++)
                        while (rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, pool + (i * 101) % 65536, o->size, NULL,
                                                0, NULL) == -1) {
                                if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                                        die("produce", rd_kafka_err2str(rd_kafka_last_error()));
                                rd_kafka_poll(rk, 10);
                        }
                require(rd_kafka_commit_transaction(rk, TIMEOUT_MS), "commit_transaction");
                int64_t now = now_ns();
                took[transactions++] = now - start;
                start = now;
        }
        double seconds = (double)(now_ns() - began) / 1e9;
        printf("{\"records\": %ld, \"bytes\": %ld, \"seconds\": %.6f, \"transactions\": %ld, \"refused\": %ld, ",
               (long)delivered, (long)(delivered * (int64_t)o->size), seconds, (long)transactions, (long)refused);
        percentiles("transaction_us", took, transactions);
        printf(", \"client_cpu\": %.3f}\n", own_cpu_seconds());
        fflush(stdout);
        _exit(delivered < o->records ? 1 : 0);
}

static int consume(const struct options *o) {
        char error[256];
        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        set(conf, "bootstrap.servers", o->bootstrap);
        set(conf, "queued.max.messages.kbytes", "262144");
        set(conf, "queued.min.messages", "1000000");
        set_all(conf, o->both, o->both_count);
        set_all(conf, o->consumer, o->consumer_count);
        rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, error, sizeof(error));
        if (!rk)
                die("consumer", error);
        rd_kafka_topic_t *topic = make_topic(rk, o->topic);
        rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
        int64_t began = now_ns(), first = 0, last = began;
        for (int32_t i = 0; i < o->partitions; i++)
                if (rd_kafka_consume_start_queue(topic, i, RD_KAFKA_OFFSET_BEGINNING, queue) == -1)
                        die("consume", rd_kafka_err2str(rd_kafka_last_error()));
        static rd_kafka_message_t *batch[10000];
        int64_t count = 0, bytes = 0, disorder = 0;
        int64_t *expected = calloc((size_t)o->partitions, sizeof(*expected));
        int64_t deadline = began + (int64_t)TIMEOUT_MS * 1000000;
        while (count < o->records && now_ns() < deadline) {
                ssize_t got = rd_kafka_consume_batch_queue(queue, 1000, batch, 10000);
                if (got < 0)
                        die("consume", rd_kafka_err2str(rd_kafka_last_error()));
                for (ssize_t i = 0; i < got; i++) {
                        if (!batch[i]->err) {
                                if (!first)
                                        first = now_ns();
                                count++;
                                bytes += (int64_t)batch[i]->len;
                                int64_t *next = &expected[batch[i]->partition];
                                int64_t markers = o->each ? *next / o->each : 0;
                                disorder += batch[i]->offset != (*next)++ + markers;
                        } else if (batch[i]->err != RD_KAFKA_RESP_ERR__PARTITION_EOF)
                                die("consume", rd_kafka_message_errstr(batch[i]));
                        rd_kafka_message_destroy(batch[i]);
                }
                last = now_ns();
        }
        printf("{\"records\": %ld, \"bytes\": %ld, \"seconds\": %.6f, \"to_first\": %.6f, \"missing\": %ld, "
               "\"disorder\": %ld, \"client_cpu\": %.3f}\n",
               (long)count, (long)bytes, (double)(last - began) / 1e9, (double)((first ? first : last) - began) / 1e9,
               (long)(o->records - count), (long)disorder, own_cpu_seconds());
        fflush(stdout);
        _exit(count < o->records || disorder ? 1 : 0);
}

/* ---- latency ---- */

struct receiver {
        const struct options *o;
        int64_t *arrived_ns;
        _Atomic int64_t count;
        _Atomic int ready;
        _Atomic int stop;
        rd_kafka_t *rk;
        rd_kafka_topic_t *topic;
};

static void *receive(void *argument) {
        struct receiver *r = argument;
        /* The caller has found the end of the partition, so nothing older arrives. */
        if (rd_kafka_consume_start(r->topic, 0, RD_KAFKA_OFFSET_END) == -1)
                die("consume", rd_kafka_err2str(rd_kafka_last_error()));
        while (!r->stop) {
                rd_kafka_message_t *message = rd_kafka_consume(r->topic, 0, 100);
                if (!message)
                        continue;
                if (message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
                        r->ready = 1; /* the first long poll is under way */
                } else if (message->err) {
                        die("consume", rd_kafka_message_errstr(message));
                } else if (message->len >= 16) {
                        int64_t number, due;
                        int64_t now = now_ns();
                        memcpy(&number, message->payload, sizeof(number));
                        memcpy(&due, (char *)message->payload + sizeof(number), sizeof(due));
                        if (number >= 0 && number < r->o->records) {
                                r->arrived_ns[number] = now - due;
                                r->count++;
                        }
                }
                rd_kafka_message_destroy(message);
        }
        return NULL;
}

static _Atomic int stop_polling;

static void *poll_deliveries(void *rk) {
        while (!stop_polling)
                rd_kafka_poll(rk, 20);
        return NULL;
}

static int latency(const struct options *o) {
        char error[256];
        rd_kafka_t *producer = make_producer(o);
        rd_kafka_topic_t *topic = make_topic(producer, o->topic);
        rd_kafka_conf_t *conf = rd_kafka_conf_new();
        set(conf, "bootstrap.servers", o->bootstrap);
        set(conf, "enable.partition.eof", "true");
        set(conf, "fetch.wait.max.ms", "500");
        set_all(conf, o->both, o->both_count);
        set_all(conf, o->consumer, o->consumer_count);
        struct receiver r = {.o = o, .arrived_ns = malloc((size_t)o->records * sizeof(int64_t))};
        ack_limit = o->records;
        ack_ns = malloc((size_t)o->records * sizeof(int64_t));
        for (int64_t i = 0; i < o->records; i++)
                ack_ns[i] = r.arrived_ns[i] = -1;
        r.rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, error, sizeof(error));
        if (!r.rk)
                die("consumer", error);
        r.topic = make_topic(r.rk, o->topic);
        pthread_t receiver, poller;
        pthread_create(&receiver, NULL, receive, &r);
        pthread_create(&poller, NULL, poll_deliveries, producer);
        int64_t patience = now_ns() + 30000000000;
        while (!r.ready && now_ns() < patience)
                usleep(1000);
        if (!r.ready)
                die("consume", "the end of the partition was not reached");

        char *payload = calloc(1, o->size < 16 ? 16 : o->size);
        int64_t interval = 1000000000 / o->rate;
        int64_t due = now_ns() + 1000000;
        for (int64_t i = 0; i < o->records; i++, due += interval) {
                struct timespec until = {.tv_sec = due / 1000000000, .tv_nsec = due % 1000000000};
                while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
                        ;
                memcpy(payload, &i, sizeof(i));
                memcpy(payload + sizeof(i), &due, sizeof(due));
                while (rd_kafka_produce(topic, 0, RD_KAFKA_MSG_F_COPY, payload, o->size, NULL, 0, NULL) == -1) {
                        if (rd_kafka_last_error() != RD_KAFKA_RESP_ERR__QUEUE_FULL)
                                die("produce", rd_kafka_err2str(rd_kafka_last_error()));
                        usleep(100);
                }
        }
        int64_t deadline = now_ns() + 30000000000;
        while ((r.count < o->records || delivered + refused < o->records) && now_ns() < deadline)
                usleep(1000);
        stop_polling = 1;
        r.stop = 1;
        pthread_join(receiver, NULL);
        pthread_join(poller, NULL);
        int64_t arrived = 0, acknowledged = 0;
        for (int64_t i = o->warm_up; i < o->records; i++) {
                if (r.arrived_ns[i] >= 0)
                        r.arrived_ns[arrived++] = r.arrived_ns[i];
                if (ack_ns[i] >= 0)
                        ack_ns[acknowledged++] = ack_ns[i];
        }
        printf("{\"records\": %ld, \"rate\": %ld, \"missing\": %ld, \"refused\": %ld, ", (long)arrived, (long)o->rate,
               (long)(o->records - r.count), (long)refused);
        percentiles("end_to_end_us", r.arrived_ns, arrived);
        printf(", ");
        percentiles("acknowledge_us", ack_ns, acknowledged);
        printf(", \"client_cpu\": %.3f}\n", own_cpu_seconds());
        fflush(stdout);
        _exit(r.count < o->records || refused ? 1 : 0);
}

static void add(const char **list, int *count, const char *value) {
        if (*count == MAX_OPTIONS)
                die(value, "too many options");
        list[(*count)++] = value;
}

int main(int argc, char **argv) {
        struct options o = {.partitions = 1, .size = 100, .records = 1000, .rate = 1000};
        const char *command = argc > 1 ? argv[1] : "";
        optind = 2;
        for (int c; (c = getopt(argc, argv, "b:t:n:s:p:r:w:k:K:X:P:C:")) != -1;) {
                switch (c) {
                case 'b': o.bootstrap = optarg; break;
                case 't': o.topic = optarg; break;
                case 'n': o.records = atoll(optarg); break;
                case 's': o.size = (size_t)atoll(optarg); break;
                case 'p': o.partitions = atoi(optarg); break;
                case 'r': o.rate = atoll(optarg); break;
                case 'w': o.warm_up = atoll(optarg); break;
                case 'k': o.each = atoll(optarg); break;
                case 'K': o.keys = atoll(optarg); break;
                case 'X': add(o.both, &o.both_count, optarg); break;
                case 'P': add(o.producer, &o.producer_count, optarg); break;
                case 'C': add(o.consumer, &o.consumer_count, optarg); break;
                default: return 2;
                }
        }
        if (!o.bootstrap || !o.topic || o.records < 1 || o.partitions < 1 || o.rate < 1 || o.warm_up >= o.records)
                die("usage", "see the head of driver.c");
        if (strcmp(command, "latency") == 0 && o.size < 16)
                die("-s", "latency needs records of 16 bytes or more");
        if (strcmp(command, "produce") == 0)
                return produce(&o);
        if (strcmp(command, "transact") == 0)
                return transact(&o);
        if (strcmp(command, "consume") == 0)
                return consume(&o);
        if (strcmp(command, "latency") == 0)
                return latency(&o);
        die("usage", "produce, transact, consume or latency expected");
}
