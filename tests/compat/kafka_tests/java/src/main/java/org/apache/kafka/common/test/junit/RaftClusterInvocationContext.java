package org.apache.kafka.common.test.junit;

import anabranch.kafkatests.Brokers;
import anabranch.kafkatests.Node;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import kafka.server.ControllerServer;
import kafka.server.KafkaBroker;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.Type;
import org.apache.kafka.server.fault.FaultHandlerException;
import org.apache.kafka.test.TestUtils;
import org.junit.jupiter.api.extension.AfterTestExecutionCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.Extension;
import org.junit.jupiter.api.extension.TestTemplateInvocationContext;

/** A cluster of a test with `@ClusterTest`, in the place of Kafka's own: one node instead of brokers and controllers. */
public class RaftClusterInvocationContext implements TestTemplateInvocationContext {
    private final String baseDisplayName;
    private final ClusterConfig config;
    private final boolean combined;

    public RaftClusterInvocationContext(String baseDisplayName, ClusterConfig config, boolean combined) {
        this.baseDisplayName = baseDisplayName;
        this.config = config;
        this.combined = combined;
    }

    @Override
    public String getDisplayName(int invocation) {
        String tags = String.join(",", config.displayTags());
        return String.format("%s [%d] Type=Raft-%s, %s", baseDisplayName, invocation, combined ? "Combined" : "Isolated", tags);
    }

    @Override
    public List<Extension> getAdditionalExtensions() {
        NodeCluster cluster = new NodeCluster(config, combined);
        BeforeEachCallback before = context -> {
            if (config.isAutoStart()) {
                cluster.start();
            }
        };
        AfterTestExecutionCallback after = context -> cluster.stop();
        return List.of(before, after, new ClusterInstanceParameterResolver(cluster));
    }

    private static final class NodeCluster implements ClusterInstance {
        private final ClusterConfig config;
        private final boolean combined;
        private final Node node;
        private final Map<Integer, KafkaBroker> brokers;
        private boolean started;
        private boolean stopped;

        NodeCluster(ClusterConfig config, boolean combined) {
            this.config = config;
            this.combined = combined;
            Map<String, String> asked = new HashMap<>(config.serverProperties());
            config.features().forEach((feature, level) -> asked.put("feature." + feature.featureName(), level.toString()));
            node = new Node(asked);
            brokers = IntStream.range(0, config.numBrokers()).boxed()
                .collect(Collectors.toMap(id -> id, id -> Brokers.broker(node, brokerConfig(id))));
        }

        private KafkaConfig brokerConfig(int id) {
            String listener = config.brokerListenerName().value();
            String controller = config.controllerListenerName().value();
            Map<String, String> properties = new HashMap<>();
            properties.put("node.id", Integer.toString(id));
            properties.put("process.roles", "broker");
            properties.put("controller.quorum.voters", "3000@localhost:9093");
            properties.put("controller.listener.names", controller);
            properties.put("listeners", listener + "://localhost:0");
            properties.put("inter.broker.listener.name", listener);
            properties.put("listener.security.protocol.map", String.format("%s:%s,%s:%s",
                listener, config.brokerSecurityProtocol(), controller, config.controllerSecurityProtocol()));
            properties.put("log.dirs", TestUtils.tempDirectory().getAbsolutePath());
            properties.putAll(config.serverProperties());
            properties.putAll(config.perServerOverrideProperties().getOrDefault(id, Map.of()));
            return new KafkaConfig(properties, false);
        }

        @Override
        public void start() {
            brokers.values().forEach(KafkaBroker::startup);
            started = true;
        }

        @Override
        public void stop() {
            node.close();
            stopped = true;
        }

        @Override
        public boolean started() {
            return started;
        }

        @Override
        public boolean stopped() {
            return stopped;
        }

        @Override
        public void shutdownBroker(int id) {
            brokers.get(id).shutdown();
        }

        @Override
        public void startBroker(int id) {
            brokers.get(id).startup();
        }

        @Override
        public void waitForReadyBrokers() {
            // A broker's start returns when its node serves.
        }

        @Override
        public String bootstrapServers() {
            return node.bootstrap();
        }

        @Override
        public String bootstrapControllers() {
            throw new UnsupportedOperationException("a node has no listener of controllers");
        }

        @Override
        public ListenerName clientListener() {
            return config.brokerListenerName();
        }

        @Override
        public ListenerName controllerListenerName() {
            return config.controllerListenerName();
        }

        @Override
        public String clusterId() {
            return brokers.get(0).clusterId();
        }

        @Override
        public Type type() {
            return combined ? Type.CO_KRAFT : Type.KRAFT;
        }

        @Override
        public ClusterConfig config() {
            return config;
        }

        @Override
        public Map<Integer, KafkaBroker> brokers() {
            return brokers;
        }

        @Override
        public Map<Integer, ControllerServer> controllers() {
            return Map.of();
        }

        @Override
        public Set<Integer> controllerIds() {
            return Set.of();
        }

        @Override
        public Optional<FaultHandlerException> firstFatalException() {
            return Optional.empty();
        }

        @Override
        public Optional<FaultHandlerException> firstNonFatalException() {
            return Optional.empty();
        }
    }
}
