package anabranch.kafkatests;

import static net.bytebuddy.matcher.ElementMatchers.namedOneOf;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import kafka.cluster.Partition;
import kafka.log.LogManager;
import kafka.network.SocketServer;
import kafka.server.BrokerServer;
import kafka.server.ControllerServer;
import kafka.server.KafkaApis;
import kafka.server.KafkaBroker;
import kafka.server.KafkaConfig;
import kafka.server.ReplicaManager;
import kafka.server.metadata.KRaftMetadataCache;
import kafka.utils.TestUtils$;
import net.bytebuddy.ByteBuddy;
import net.bytebuddy.agent.ByteBuddyAgent;
import net.bytebuddy.asm.Advice;
import net.bytebuddy.dynamic.loading.ClassReloadingStrategy;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.controller.Controller;
import org.apache.kafka.controller.ResultOrError;
import org.apache.kafka.coordinator.group.GroupCoordinator;
import org.apache.kafka.metadata.BrokerState;
import org.apache.kafka.metadata.LeaderAndIsr;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.mockito.Mockito;
import org.mockito.invocation.InvocationOnMock;
import org.mockito.stubbing.Answer;
import scala.Option;
import scala.collection.immutable.Seq$;

/**
 * Objects in the place of a broker's own, as far as a client of a node can answer for them.
 *
 * Tests mostly ask them for ports and wait for topics. Every other call fails with a message that names it: such a test
 * looks inside of a broker.
 */
public final class Brokers {
    static {
        // A node keeps no state in topics, refuses topics of these names, and has no metadata that could lag behind.
        ByteBuddyAgent.install();
        new ByteBuddy().redefine(TestUtils$.class)
            .visit(Advice.to(Nothing.class).on(namedOneOf(
                "createOffsetsTopicWithAdmin", "createTransactionStateTopicWithAdmin", "ensureConsistentKRaftMetadata")))
            .make()
            .load(TestUtils$.class.getClassLoader(), ClassReloadingStrategy.fromInstalledAgent());
    }

    private Brokers() {
    }

    /** What a method does instead of its body. */
    private static final class Nothing {
        @Advice.OnMethodEnter(skipOn = Advice.OnNonDefaultValue.class)
        static boolean enter() {
            return true;
        }
    }

    /** A broker whose requests go to the node. */
    public static KafkaBroker broker(anabranch.kafkatests.Node node, KafkaConfig config) {
        SocketServer sockets = sockets(node);
        KRaftMetadataCache cache = metadata(node);
        LogManager logs = stand(LogManager.class, call -> switch (call.getMethod().getName()) {
            case "getLog" -> Option.apply(log(node, call.getArgument(0)));
            case "getLog$default$2" -> false;
            case "liveLogDirs" -> Seq$.MODULE$.empty();
            default -> refuse(call);
        });
        return stand(BrokerServer.class, call -> switch (call.getMethod().getName()) {
            case "config" -> config;
            case "startup" -> {
                node.start(config.nodeId());
                yield null;
            }
            case "shutdown" -> {
                node.stop(config.nodeId());
                yield null;
            }
            case "awaitShutdown" -> null;
            case "isShutdown" -> !node.runs(config.nodeId());
            case "brokerState" ->
                node.runs(config.nodeId()) ? BrokerState.RUNNING : BrokerState.NOT_RUNNING;
            case "boundPort" -> node.port();
            case "socketServer" -> sockets;
            case "metadataCache" -> cache;
            case "clusterId" -> node.admin().describeCluster().clusterId().get();
            case "authorizerPlugin" -> Option.empty();
            case "groupCoordinator" -> stand(GroupCoordinator.class, asked -> switch (asked.getMethod().getName()) {
                case "groupMetadataTopicConfigs" -> new Properties();
                default -> refuse(asked);
            });
            case "dataPlaneRequestProcessor" -> stand(KafkaApis.class, asked -> switch (asked.getMethod().getName()) {
                case "isConsumerGroupProtocolEnabled" -> true;
                default -> refuse(asked);
            });
            case "replicaManager" -> stand(ReplicaManager.class, asked -> switch (asked.getMethod().getName()) {
                case "onlinePartition" -> Option.apply(log(node, asked.getArgument(0)))
                    .map(log -> stand(Partition.class, ofIt -> switch (ofIt.getMethod().getName()) {
                        case "leaderLogIfLocal" -> Option.apply(log);
                        case "getLeaderEpoch" -> latest(node, asked.getArgument(0)).leaderEpoch().orElse(0);
                        default -> refuse(ofIt);
                    }));
                case "logManager" -> logs;
                case "localLog", "getLog" -> Option.apply(log(node, asked.getArgument(0)));
                default -> refuse(asked);
            });
            case "logManager" -> logs;
            default -> refuse(call);
        });
    }

    /** A controller that knows topics' ids and whose listener is the node's. */
    public static ControllerServer controller(anabranch.kafkatests.Node node) {
        SocketServer sockets = sockets(node);
        Controller controller = stand(Controller.class, call -> switch (call.getMethod().getName()) {
            case "findAllTopicIds" -> CompletableFuture.completedFuture(topicIds(node));
            case "findTopicIds" -> {
                Map<String, Uuid> known = topicIds(node);
                Map<String, ResultOrError<Uuid>> found = new HashMap<>();
                for (Object name : call.getArgument(1, java.util.Collection.class)) {
                    Uuid id = known.get(name);
                    found.put((String) name, id != null ? new ResultOrError<>(id)
                        : new ResultOrError<>(Errors.UNKNOWN_TOPIC_OR_PARTITION, "no such topic"));
                }
                yield CompletableFuture.completedFuture(found);
            }
            default -> refuse(call);
        });
        return stand(ControllerServer.class, call -> switch (call.getMethod().getName()) {
            case "socketServer" -> sockets;
            case "controller" -> controller;
            case "clusterId" -> node.admin().describeCluster().clusterId().get();
            default -> refuse(call);
        });
    }

    private static SocketServer sockets(anabranch.kafkatests.Node node) {
        return stand(SocketServer.class, call -> switch (call.getMethod().getName()) {
            case "boundPort" -> node.port();
            default -> refuse(call);
        });
    }

    private static KRaftMetadataCache metadata(anabranch.kafkatests.Node node) {
        return stand(KRaftMetadataCache.class, call -> switch (call.getMethod().getName()) {
            case "numPartitions" -> describe(node, call.getArgument(0)).map(topic -> topic.partitions().size());
            case "getLeaderAndIsr" -> describe(node, call.getArgument(0)).flatMap(topic -> topic.partitions().stream()
                .filter(partition -> partition.partition() == call.<Integer>getArgument(1))
                .findFirst()
                .map(Brokers::leader));
            case "contains" -> call.getArgument(0) instanceof String name ? describe(node, name).isPresent() : refuse(call);
            case "getTopicId" -> describe(node, call.getArgument(0)).map(TopicDescription::topicId).orElse(Uuid.ZERO_UUID);
            case "topicNamesToIds" -> topicIds(node);
            case "getAllTopics" -> node.admin().listTopics().names().get();
            case "hasAliveBroker" -> node.admin().describeCluster().nodes().get().stream()
                .anyMatch(one -> one.id() == call.<Integer>getArgument(0));
            case "getAliveBrokerNodes" -> List.copyOf(node.admin().describeCluster().nodes().get());
            default -> refuse(call);
        });
    }

    /** The log of a partition, the same for every broker of the node; null if there is none. */
    private static UnifiedLog log(anabranch.kafkatests.Node node, TopicPartition partition)
            throws InterruptedException, ExecutionException {
        boolean exists = describe(node, partition.topic()).stream()
            .anyMatch(topic -> partition.partition() < topic.partitions().size());
        return !exists ? null : stand(UnifiedLog.class, call -> switch (call.getMethod().getName()) {
            case "logStartOffset" ->
                offset(node, partition, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED).offset();
            case "logEndOffset", "highWatermark" -> latest(node, partition).offset();
            case "lastStableOffset" ->
                offset(node, partition, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED).offset();
            case "producerStateManager" -> stand(ProducerStateManager.class, ofIt -> switch (ofIt.getMethod().getName()) {
                case "activeProducers" -> producers(node, partition);
                default -> refuse(ofIt);
            });
            default -> refuse(call);
        });
    }

    private static Map<Long, ProducerStateEntry> producers(anabranch.kafkatests.Node node, TopicPartition partition)
            throws InterruptedException, ExecutionException {
        Map<Long, ProducerStateEntry> entries = new HashMap<>();
        node.admin().describeProducers(Set.of(partition)).partitionResult(partition).get().activeProducers().forEach(
            producer -> entries.put(producer.producerId(), stand(ProducerStateEntry.class,
                call -> switch (call.getMethod().getName()) {
                    case "producerId" -> producer.producerId();
                    case "producerEpoch" -> (short) producer.producerEpoch();
                    default -> refuse(call);
                })));
        return entries;
    }

    private static ListOffsetsResultInfo latest(anabranch.kafkatests.Node node, TopicPartition partition)
            throws InterruptedException, ExecutionException {
        return offset(node, partition, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED);
    }

    private static ListOffsetsResultInfo offset(
            anabranch.kafkatests.Node node, TopicPartition partition, OffsetSpec spec, IsolationLevel level)
            throws InterruptedException, ExecutionException {
        return node.admin().listOffsets(Map.of(partition, spec), new ListOffsetsOptions(level))
            .partitionResult(partition).get();
    }

    private static LeaderAndIsr leader(TopicPartitionInfo partition) {
        List<Integer> isr = partition.isr().stream().map(Node::id).toList();
        return new LeaderAndIsr(partition.leader().id(), 0, isr, LeaderRecoveryState.RECOVERED, 0);
    }

    private static Optional<TopicDescription> describe(anabranch.kafkatests.Node node, String topic)
            throws InterruptedException, ExecutionException {
        try {
            return Optional.of(node.admin().describeTopics(Set.of(topic)).allTopicNames().get().get(topic));
        } catch (ExecutionException error) {
            if (error.getCause() instanceof UnknownTopicOrPartitionException) {
                return Optional.empty();
            }
            throw error;
        }
    }

    private static Map<String, Uuid> topicIds(anabranch.kafkatests.Node node)
            throws InterruptedException, ExecutionException {
        Map<String, Uuid> ids = new HashMap<>();
        node.admin().listTopics().listings().get().forEach(topic -> ids.put(topic.name(), topic.topicId()));
        return ids;
    }

    private static Object refuse(InvocationOnMock call) {
        if (call.getMethod().getName().equals("toString")) {
            return "stand-in";
        }
        throw new UnsupportedOperationException("looks inside of a broker: "
            + call.getMethod().getDeclaringClass().getSimpleName() + "." + call.getMethod().getName());
    }

    private static <T> T stand(Class<T> type, Answer<Object> answer) {
        return Mockito.mock(type, Mockito.withSettings().stubOnly().defaultAnswer(answer));
    }
}
