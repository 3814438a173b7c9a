package kafka.server;

import anabranch.kafkatests.Brokers;
import anabranch.kafkatests.Node;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Stream;
import kafka.utils.Logging;
import kafka.utils.TestInfoUtils;
import org.apache.kafka.clients.consumer.GroupProtocol;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.metadata.storage.Formatter;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.server.fault.MockFaultHandler;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.TestInfo;
import org.junit.jupiter.params.provider.Arguments;
import scala.Option;
import scala.collection.Seq;
import scala.collection.immutable.Seq$;

/**
 * The base of Kafka's older tests, in the place of Kafka's own: its brokers are one node, and nothing keeps their metadata.
 *
 * Names and signatures are those of the class that subclasses were compiled against.
 */
public abstract class QuorumTestHarness implements Logging {
    private final QuorumTestHarnessFaultHandlerFactory faultHandlerFactory =
        new QuorumTestHarnessFaultHandlerFactory(new MockFaultHandler("node"));
    private TestInfo testInfo;
    private Node node;
    private String logIdent;

    public static Stream<Arguments> getTestGroupProtocolParametersAll() {
        return Stream.of(Arguments.of("classic"), Arguments.of("consumer"));
    }

    public static Stream<Arguments> getTestGroupProtocolParametersClassicGroupProtocolOnly() {
        return Stream.of(Arguments.of("classic"));
    }

    public static Stream<Arguments> getTestGroupProtocolParametersConsumerGroupProtocolOnly() {
        return Stream.of(Arguments.of("consumer"));
    }

    @Override
    public String logIdent() {
        return logIdent;
    }

    @Override
    public void logIdent_$eq(String value) {
        logIdent = value;
    }

    @BeforeEach
    public void setUp(TestInfo info) {
        testInfo = info;
    }

    @AfterEach
    public void tearDown() {
        if (node != null) {
            node.close();
            node = null;
        }
    }

    public KafkaBroker createBroker(KafkaConfig config, Time time, boolean startup, Option<String> threadNamePrefix) {
        if (node == null) {
            Map<String, String> properties = new HashMap<>();
            config.originals().forEach((name, value) -> properties.put(name, String.valueOf(value)));
            properties.put("feature.transaction.version", TestInfoUtils.isTransactionV2Enabled(testInfo) ? "2" : "1");
            node = new Node(properties);
        }
        KafkaBroker broker = Brokers.broker(node, config);
        if (startup) {
            broker.startup();
        }
        return broker;
    }

    public Time createBroker$default$2() {
        return Time.SYSTEM;
    }

    public boolean createBroker$default$3() {
        return true;
    }

    public Option<String> createBroker$default$4() {
        return Option.empty();
    }

    public ControllerServer controllerServer() {
        return Brokers.controller(node);
    }

    /** Without controllers nobody waits until their metadata has reached the brokers. */
    @SuppressWarnings("unchecked")
    public Seq<ControllerServer> controllerServers() {
        return (Seq<ControllerServer>) (Object) Seq$.MODULE$.empty();
    }

    public Option<GroupProtocol> maybeGroupProtocolSpecified() {
        return TestInfoUtils.maybeGroupProtocolSpecified(testInfo);
    }

    public GroupProtocol groupProtocolFromTestParameters() {
        return maybeGroupProtocolSpecified().get();
    }

    public QuorumTestHarnessFaultHandlerFactory faultHandlerFactory() {
        return faultHandlerFactory;
    }

    public MockFaultHandler faultHandler() {
        return faultHandlerFactory.faultHandler();
    }

    public SecurityProtocol controllerListenerSecurityProtocol() {
        return SecurityProtocol.PLAINTEXT;
    }

    public MetadataVersion metadataVersion() {
        return MetadataVersion.latestTesting();
    }

    @SuppressWarnings("unchecked")
    public Seq<Properties> kraftControllerConfigs(TestInfo info) {
        return (Seq<Properties>) (Object) Seq$.MODULE$.empty();
    }

    @SuppressWarnings("unchecked")
    public Seq<SecurityProtocol> extraControllerSecurityProtocols() {
        return (Seq<SecurityProtocol>) (Object) Seq$.MODULE$.empty();
    }

    public void addFormatterSettings(Formatter formatter) {
    }
}
